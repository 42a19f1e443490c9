"""Choosing without labels: the separability of dropout views, and which method ships."""
