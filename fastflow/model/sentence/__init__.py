"""A directory saved by Sentence Transformers."""
