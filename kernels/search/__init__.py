"""Codes of rows against the code of a query: ``reference`` defines the two scans, ``cpu`` has them compiled."""
