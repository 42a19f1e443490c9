"""Measuring: one comparison, its clock, the machine and its ceilings."""
