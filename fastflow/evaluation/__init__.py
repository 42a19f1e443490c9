"""Measure how good embeddings are."""
