"""Benchmarks: candidates checked against float64, then timed in turn in one process; see ``fastflow.bench.cli``."""
