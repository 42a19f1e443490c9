"""Texts in and embeddings out: readers, writers, parts, caches and the runs that use them."""
