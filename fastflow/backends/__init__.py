"""Backends: compiled kernels, Triton, PyTorch, NumPy."""
