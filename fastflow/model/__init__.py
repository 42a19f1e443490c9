"""Models on disk. Readers raise a FastflowError that names file and field, tensor or setting."""
