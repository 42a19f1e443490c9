"""Fit token vectors, so that their mean over a text approximates a model's vector."""
