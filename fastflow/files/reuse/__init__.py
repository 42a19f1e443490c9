"""Reuse of computed vectors: of repeated texts, of earlier runs (--cache), and in training."""
