"""Fit to texts, to vectors, or to the input of `fastflow embed`."""
