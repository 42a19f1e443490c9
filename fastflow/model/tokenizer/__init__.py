"""A tokenizer: its files, its settings and the code that makes token ids of texts."""
