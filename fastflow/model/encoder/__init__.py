"""An encoder: its configuration and its weights."""
