"""Fit closed forms, flows, and chains of them."""
