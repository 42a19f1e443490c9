"""The folded calibration: its equations and plan in NumPy, and the bodies that execute a plan."""
