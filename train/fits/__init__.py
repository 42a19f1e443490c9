"""Fits: to texts, to texts in shards, to vectors, and to the input of `fastflow embed`."""
