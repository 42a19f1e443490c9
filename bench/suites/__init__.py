"""The suites of ``fastflow bench``: who takes part, at which sizes, and one run of each."""
