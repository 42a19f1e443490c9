"""The report of a run: ratios, tables and plots."""
