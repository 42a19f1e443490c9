"""Read a corpus; weigh, embed and measure it."""
