"""Tokenization for static encoders, without special tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastflow.errors import FastflowError
from fastflow.late import late
from fastflow.model.static.table import TOKENIZER, open_table, read_rules
from fastflow.model.tokenizer import Piece, Tokenizer, Tokens
from fastflow.values import MOST, short


class StaticTokenizer(Tokenizer):
    """A token table's tokenizer, with a limit in tokens; MOST: none.

    model2vec cuts by characters, then by tokens, then drops unknown tokens. A StaticEmbedding keeps unknown tokens, and
    cuts only if tokenizer.json does.
    """

    ended = False

    def __init__(self, directory: Path, max_length: int) -> None:
        rules, table = read_rules(directory), open_table(directory)
        self._open(directory)
        self.max_length = max_length if rules.model2vec else min(max_length, self._limit())
        if rules.model2vec:
            with self._use():
                self.left_out = _unknown(self._tokenizer) if self._native is None else self._native.unknown
        self._check_dropout()
        self.longest = self.max_length if rules.model2vec else MOST
        self._check_size(table.vocabulary, exact=rules.model2vec and table.mapping is None)

    def _limit(self) -> int:
        if self._native is not None:
            return MOST if self._native.limit is None else self._native.limit
        found = self._library.truncation
        if found is None:
            return MOST
        if found["direction"] != "right":
            where = f"{self._directory / TOKENIZER}, field truncation, direction"
            raise FastflowError(f"{where}: must be right, not {short(found['direction'])}")
        return int(found["max_length"])

    def _check_size(self, vocabulary: int, exact: bool) -> None:
        if self.size > vocabulary or (exact and self.size != vocabulary):
            raise FastflowError(
                f"{self._directory}: the tokenizer has {self.size:,} entries, and the table has {vocabulary:,} vectors"
            )

    @late
    def _characters(self) -> int:
        known = self._native
        lengths = [len(token) for token in self._tokenizer.get_vocab()] if known is None else known.lengths()
        return self.max_length * int(np.median(lengths))

    @property
    def most_characters(self) -> int | None:
        """How many characters of a text are tokenized; None: all."""
        return self._characters if self.longest < MOST else None

    def __call__(self, texts: Sequence[str]) -> Tokens:
        kept = list(texts)
        cut = [i for i, text in enumerate(texts) if len(text) > self.longest]
        cut = [i for i in cut if len(texts[i]) > self._characters]
        for i in cut:
            kept[i] = texts[i][: self._characters]
        tokens = super().__call__(kept)
        if cut:
            # np.union1d would import numpy.ma, and a fork of another thread could leave its import locked
            tokens = tokens._replace(cut=np.array(sorted({*tokens.cut.tolist(), *cut}), np.int64))
        return tokens if self.left_out is None else _without(tokens, self.left_out)

    def describe(self, texts: Sequence[str], special: bool = True) -> list[list[Piece]]:
        return [[piece for piece in pieces if piece.id != self.left_out] for pieces in super().describe(texts, False)]

    def prompt_tokens(self, prompt: str) -> int:
        return len(self([prompt]).ids)


def _without(tokens: Tokens, unknown: int) -> Tokens:
    known = tokens.ids != unknown
    if known.all():
        return tokens
    before = np.zeros(len(known) + 1, np.int64)
    np.cumsum(known, out=before[1:])
    return tokens._replace(ids=tokens.ids[known], offsets=before[tokens.offsets])


def _unknown(tokenizer: Any) -> int | None:
    if hasattr(tokenizer.model, "unk_token"):
        name = tokenizer.model.unk_token
        return None if name is None else tokenizer.token_to_id(name)
    found = json.loads(tokenizer.to_str())["model"].get("unk_id")  # Unigram's unknown id, which its object lacks
    return None if found is None else int(found)
