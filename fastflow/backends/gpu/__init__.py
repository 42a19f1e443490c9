"""The GPU: memory and streams, captured graphs, a pipeline of batches."""
