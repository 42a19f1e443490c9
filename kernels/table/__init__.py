"""Texts' vectors as means of rows of a table: ``reference`` defines them, ``cpu`` has them compiled."""
