"""The page of ``fastflow report``."""
