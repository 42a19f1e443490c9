"""fastflow."""
