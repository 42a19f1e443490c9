"""Texts as the mean of rows of a table: ``reference`` defines it, ``cpu`` has it compiled."""
