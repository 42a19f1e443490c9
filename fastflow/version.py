"""The version of the package, which every file that it writes may name."""

__version__ = "0.1.0"
