"""Adapters for other libraries; each module needs its library."""
