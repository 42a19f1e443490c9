"""Scans compare all stored vectors with a query's: ``reference`` defines them, ``cpu`` has them compiled."""
