"""Directories saved by Sentence Transformers."""
