"""Fit calibrations: closed forms, flows, and chains of both."""
