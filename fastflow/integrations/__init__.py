"""Adapters; each module needs its library."""
