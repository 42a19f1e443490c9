"""The other engines, each at its usual best."""
