"""Benchmarks: candidates checked against float64, then timed alternately in one process; see ``fastflow.bench.cli``."""
