"""Texts to token ids by WordPiece: ``reference`` defines it, ``cpu`` has it compiled."""
