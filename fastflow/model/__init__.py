"""A model on disk: its manifest and hashes, its encoder's configuration and weights, its tokenizer."""
