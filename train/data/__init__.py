"""The data that a calibration is fitted to: the corpus, its token weights, its embeddings and their moments."""
