"""Static encoders: a table of token vectors and a tokenizer."""
