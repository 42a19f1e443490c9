"""Measures of embeddings: Spearman on scored pairs, isotropy, lexical bias, word frequency."""
