"""Fold a calibration into the plan that every backend runs."""
