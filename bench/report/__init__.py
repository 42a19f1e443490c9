"""What a run says: ratios, tables and plots."""
