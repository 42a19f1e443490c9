"""Texts in and embeddings out: inputs, formats, partial files, outputs, and the body of ``fastflow embed``."""
