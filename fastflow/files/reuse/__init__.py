"""Vectors that were computed before: repeated texts of a run, a cache over runs, training's cache."""
