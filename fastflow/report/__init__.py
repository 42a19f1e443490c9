"""The page of ``fastflow report``: subjects, sections, figures and verdict."""
