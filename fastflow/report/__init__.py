"""The page of ``fastflow report``: subjects, sections, tables, figures and verdict."""
