"""Token weights (SIF): frequent tokens count less in the mean of a text.

SIF, smooth inverse frequency (Arora et al., ICLR 2017): a token counts a / (a + p), p its share of the corpus's tokens.
[CLS] and [SEP] are tokens like others, and the commonest, so they all but vanish. A small corpus shows its subject's
words as if they were common everywhere, so its counts n are taken together with K tokens of English at large: p is
(n + K q) / (N + K), q the token's share in ``background``, N all counts, and K = PRIOR (1 + NARROW / N), the larger the
smaller the corpus. A token of neither counts 1.

The constant a is the published one in a small corpus. In a large one, whose counts distinguish frequent tokens, it is
so small that a token counts half that occurs HALF times, down to the least that was compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from fastflow.model.architecture import read_config, whole_number
from fastflow.model.tokens import Tokenizer
from fastflow.train.data.background import background
from fastflow.train.data.embeddings import WINDOW, FrozenEncoder

A, LEAST_A = 1e-3, 3e-4  # as published, and in a large corpus: chosen on STS12-14 (bench/results/default.md)
HALF = 50  # occurrences
PRIOR, NARROW = 1e5, 5e4  # tokens: chosen on STS12-14 (bench/results/default.md)
HEAD = 32768  # texts that the frequencies of a corpus read once are counted in


def sif_weights(
    counts: NDArray[np.int64], prior: NDArray[np.float64], size: float | None = None, a: float | None = None
) -> NDArray[np.float32]:
    """(V,) weights in (0, 1] from how often each id of the vocabulary occurs (V,) and its share at large, (V,).

    ``size``: the tokens K that ``prior`` stands for, 0: none; ``a``: the constant. None: by the size of the corpus.
    """
    total = max(1.0, float(counts.sum()))
    a = min(A, max(LEAST_A, HALF / total)) if a is None else a
    size = PRIOR * (1 + NARROW / total) if size is None else size
    share = (counts + size * prior) / (total + size)
    return np.asarray(a / (a + share), np.float32)


def weigh(encoder: FrozenEncoder, texts: Sequence[str]) -> FrozenEncoder:
    """``encoder`` with its mean pooling weighted by the token frequencies of ``texts``."""
    return weigh_by(encoder, token_counts(encoder, texts))


def token_counts(encoder: FrozenEncoder, texts: Sequence[str]) -> NDArray[np.int64]:
    """(V,) how often each id of the vocabulary occurs in ``texts``; counts of parts of a corpus add up."""
    vocabulary = whole_number(read_config(encoder.directory), "vocab_size", encoder.directory)
    tokenize = Tokenizer(encoder.directory, encoder.max_length)
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(texts), WINDOW):
        counts += np.bincount(tokenize(texts[start : start + WINDOW]).ids, minlength=vocabulary)
    return counts


def weigh_by(encoder: FrozenEncoder, counts: NDArray[np.int64]) -> FrozenEncoder:
    """``weigh`` by the counts (V,) of a corpus."""
    prior = background(Tokenizer(encoder.directory, encoder.max_length), len(counts))
    return replace(encoder, pooling=replace(encoder.pooling, weights=sif_weights(counts, prior)))


def weigh_by_first(encoder: FrozenEncoder, texts: Iterator[str]) -> tuple[FrozenEncoder, Iterator[str]]:
    """``weigh`` for a corpus that is read once: by its first HEAD texts, which are then given back in front."""
    head = list(islice(texts, HEAD))
    return weigh(encoder, head), chain(head, texts)
