"""A static encoder: a table of token vectors and a tokenizer."""
