"""The page of ``fastflow report``: what is compared, its sections, tables, figures and verdict."""
