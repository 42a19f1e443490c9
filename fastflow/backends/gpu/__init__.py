"""What the triton backend needs of a device: memory and streams, captured graphs, a pipeline of batches."""
