"""Texts to embeddings in one call: ``reference`` defines it, ``cpu`` has it compiled."""
