"""An encoder directory of any kind, transformer or token table: its size, its vocabulary, its tokenizer."""

from __future__ import annotations

from pathlib import Path

from fastflow.model.architecture import EncoderSize, encoder_size, read_config, whole_number
from fastflow.model.static import is_static, open_table, read_rules
from fastflow.model.tokens import Tokenizer


def size_of(directory: Path) -> EncoderSize:
    """The size of the encoder; a token table has no layers, and MOST tokens if it has no limit."""
    if is_static(directory):
        return EncoderSize(0, open_table(directory).rows.shape[1], read_rules(directory).max_length)
    return encoder_size(read_config(directory), directory)


def vocabulary_of(directory: Path) -> int:
    """The token ids that the encoder has a vector for."""
    if is_static(directory):
        return open_table(directory).vocabulary
    return whole_number(read_config(directory), "vocab_size", directory)


def tokenizer_of(directory: Path, max_length: int, lower: bool = False, proved: bool = False) -> Tokenizer:
    """The encoder's tokenizer, limited to ``max_length`` tokens; ``lower`` and ``proved`` are those of Tokenizer."""
    if is_static(directory):
        from fastflow.model.static_tokens import StaticTokenizer  # few encoders are one

        return StaticTokenizer(directory, max_length)
    return Tokenizer(directory, max_length, lower, proved)
