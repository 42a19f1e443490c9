"""Encoders: configuration and weights."""
