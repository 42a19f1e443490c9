"""Codes of rows against a query's code: ``reference`` defines the scans, ``cpu`` has them compiled."""
