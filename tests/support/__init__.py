"""Helpers of the tests: encoders and models to test on, numbers to compare with, servers and processes."""
