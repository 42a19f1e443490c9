"""Comparison of vectors with a query's: ``reference`` defines the scans, ``cpu`` has them compiled."""
