"""The device as the triton backend needs it: memory and streams, captured graphs, a pipeline of batches."""
