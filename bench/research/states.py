"""Token states of sets and corpora, embedded once: every choice of texts and of token weights is then a sum.

A directory holds, for each name, NAME.s.npy (N, D) float16, the mean of the pooled layers' states of N tokens,
NAME.ids.npy (N,), NAME.off.npy (B+1,), NAME.json the texts; and the same of two passes with the encoder's dropout on,
NAME.v0.npy and NAME.v1.npy, over the texts numbered NAME.rows.npy. float16 moves no figure by more than 0.02.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.backends.torch import TorchBackend
from fastflow.bench.research.study_texts import read_texts
from fastflow.evaluation.evaluate import SEVEN
from fastflow.model.tokens import Tokenizer, Tokens
from fastflow.train.choice.separability import DROPOUT, TEXTS, Views
from fastflow.train.data.background import sentences
from fastflow.train.data.embeddings import open_encoder
from fastflow.train.data.moments import Moments, moments

Rows = NDArray[np.int64]
VIEWED = 3000  # texts of a corpus that have views, of a set all
BACKGROUND, SENTENCES = "background", 33_334  # a third of the largest corpus
MIX = {"snli": 6000, "flickr100k": 3000, "news": 6000, "wiki-sentences": 6000, "novel-sentences": 5000, "qnli": 6000}


class States:
    """The cache ``root`` of the states of one encoder in the layers of ``pooling``; ``need`` fills it."""

    def __init__(self, encoder: str, data: Path, root: Path, pooling: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.data, self.root = data, root
        self.encoder = open_encoder(encoder, pooling, None)
        self.tokenize = Tokenizer(self.encoder.directory, self.encoder.max_length)
        self._quiet = TorchBackend(self.encoder.model, "float32", "cpu", None)
        self._noisy = TorchBackend(self.encoder.model, "float32", "cpu", None)
        self._noisy.train_mode(DROPOUT)

    def need(self, name: str) -> None:
        """Embed the set or corpus ``name`` unless it is there."""
        done = self.root / f"{name}.done"
        if done.exists():
            return
        texts = self._texts(name)
        tokens = self.tokenize(texts)
        self._keep(f"{name}.s", self._states(self._quiet, tokens))
        self._keep(f"{name}.ids", tokens.ids)
        self._keep(f"{name}.off", tokens.offsets)
        drawn = random.Random(7).sample(range(len(texts)), len(texts) if name in SEVEN else min(VIEWED, len(texts)))
        rows = np.array(drawn, np.int64)
        self._keep(f"{name}.rows", rows)
        for i in (0, 1):
            torch.manual_seed(7 + i)
            self._keep(f"{name}.v{i}", self._states(self._noisy, tokens.select(rows)))
        (self.root / f"{name}.json").write_text(json.dumps(texts))
        done.touch()

    @cache  # noqa: B019 - one store lives as long as the process
    def texts(self, name: str) -> list[str]:
        """The distinct texts of ``name``."""
        return list(json.loads((self.root / f"{name}.json").read_text()))

    @cache  # noqa: B019
    def tokens(self, name: str) -> Tokens:
        """Their tokens."""
        return Tokens(self._read(f"{name}.ids"), self._read(f"{name}.off"), np.zeros(0, np.int64))

    @cache  # noqa: B019
    def viewed(self, name: str) -> Rows:
        """The numbers of the texts with views, in random order."""
        return self._read(f"{name}.rows")

    def counts(self, name: str, rows: Rows, vocabulary: int) -> NDArray[np.int64]:
        """(vocabulary,) how often each id occurs in the texts ``rows``."""
        return np.bincount(self.tokens(name).select(rows).ids, minlength=vocabulary)

    def pooled(self, name: str, weights: NDArray[np.float32], rows: Rows | None = None) -> NDArray[np.float64]:
        """(B, D) means of the states of the texts ``rows`` (None: all), weighted by token id."""
        tokens = self.tokens(name)
        states = self._states_of(name)
        if rows is None:
            return _means(states, tokens, weights)
        return _means(states[_places(tokens, rows)], tokens.select(rows), weights)

    def moments(self, name: str, rows: Rows | None = None) -> Moments:
        """The statistics of the states of every token of the texts ``rows`` (None: all)."""
        states = self._states_of(name)
        return moments(states if rows is None else states[_places(self.tokens(name), rows)])

    def views(self, name: str, weights: NDArray[np.float32], rows: Rows) -> Views:
        """Both views of at most TEXTS of the texts ``rows`` that have them."""
        viewed = self.viewed(name)
        among = np.flatnonzero(np.isin(viewed, rows))[:TEXTS]
        noisy = self.tokens(name).select(viewed)
        part = noisy.select(among)
        places = _places(noisy, among)
        return Views(*(_means(self._read(f"{name}.v{i}")[places], part, weights) for i in (0, 1)))

    @lru_cache(maxsize=4)  # noqa: B019
    def _states_of(self, name: str) -> NDArray[np.float16]:
        return self._read(f"{name}.s")

    def _texts(self, name: str) -> list[str]:
        if name == BACKGROUND:
            return sentences(SENTENCES)
        if name != "mix":
            return read_texts(name, self.data)
        parts = (random.Random(1).sample(read_texts(part, self.data), count) for part, count in MIX.items())
        return list(dict.fromkeys(text for part in parts for text in part))

    def _states(self, backend: TorchBackend, tokens: Tokens) -> NDArray[np.float16]:
        out: NDArray[np.float16] | None = None
        for rows in tokens.batches(512, 16384):
            pooling = self.encoder.pooling
            states, mask = backend.hidden_states(tokens.select(rows))
            shared = [share * states[layer] for share, layer in zip(pooling.factors, pooling.layers, strict=True)]
            found = sum(shared)[mask].numpy().astype(np.float16)
            if out is None:
                out = np.empty((len(tokens.ids), found.shape[1]), np.float16)
            out[_places(tokens, rows)] = found
        if out is None:
            raise ValueError("no texts to embed")
        return out

    def _keep(self, name: str, array: NDArray[np.generic]) -> None:
        np.save(self.root / f"{name}.npy", array)

    def _read(self, name: str) -> NDArray[Any]:
        return np.load(self.root / f"{name}.npy")


def _places(tokens: Tokens, rows: Rows) -> Rows:
    """Where the tokens of the texts ``rows`` stand, in that order."""
    return tokens._replace(ids=np.arange(len(tokens.ids), dtype=np.int64)).select(rows).ids  # type: ignore[arg-type, return-value]


def _means(states: NDArray[np.float16], tokens: Tokens, weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """(B, D) weighted means, a block at a time."""
    blocks: list[NDArray[np.float64]] = []
    offsets, step = tokens.offsets, 8192
    for start in range(0, len(offsets) - 1, step):
        of = offsets[start : start + step + 1]
        each = weights[tokens.ids[of[0] : of[-1]]][:, None]
        total = np.add.reduceat(states[of[0] : of[-1]].astype(np.float32) * each, of[:-1] - of[0], axis=0)
        blocks.append(total.astype(np.float64) / np.add.reduceat(each, of[:-1] - of[0], axis=0))
    return np.concatenate(blocks)


def each(names: Sequence[str], states: States, say: Callable[[str], None]) -> None:
    """Embed all of ``names``."""
    for name in names:
        states.need(name)
        say(f"states of {name}: {len(states.texts(name))} texts")
