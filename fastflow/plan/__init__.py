"""Folding: a fitted calibration becomes the plan that every backend executes."""
