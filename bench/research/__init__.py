"""Scripts that remake shipped models, data and pages; they are not in the wheel."""
