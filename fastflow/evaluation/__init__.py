"""Measures of embeddings: tasks, the paper's analyses, and agreement with other programs."""
