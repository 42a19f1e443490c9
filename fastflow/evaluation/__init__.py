"""Measures of embeddings."""
