"""The folded calibration: equations and plan in NumPy, and the bodies that execute a plan."""
