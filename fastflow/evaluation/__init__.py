"""Measures of embeddings: tasks, the analyses of the paper, and agreement with other programs."""
