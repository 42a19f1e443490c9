"""Who executes a model: the compiled kernels, Triton, PyTorch, NumPy; and how one is chosen."""
