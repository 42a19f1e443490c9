"""Tokenizers: files, settings and tokenization."""
