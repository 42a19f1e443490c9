"""Weigh tokens (SIF): frequent tokens count less in the mean of a text.

Smooth inverse frequency (Arora et al., ICLR 2017): a token counts a / (a + p). A corpus has the words of its subject
often, so p is (n / N + PRIOR q) / (1 + PRIOR): n / N is the token's share in the corpus, q in the language.
For an unknown language p is n / N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from fastflow.model import tokenizer_of
from fastflow.model.encoder import vocabulary_of
from fastflow.train.data.background import Words, compute_shares
from fastflow.train.data.embeddings import WINDOW
from fastflow.train.data.encoder import FrozenEncoder

A = 5e-4  # chosen with PRIOR in bench/results/verdicts.md
PRIOR = 20.0  # weight of the language's share; the corpus's has 1
HEAD = 32768  # texts that give the frequencies of a corpus read once


def compute_sif(counts: NDArray[np.int64], at_large: NDArray[np.float64] | None = None) -> NDArray[np.float32]:
    """Compute weights (V,) in (0, 1] from ``counts`` (V,) and shares in the language ``at_large`` (V,)."""
    share = counts / max(1.0, float(counts.sum()))
    if at_large is not None:
        share = (share + PRIOR * at_large) / (1 + PRIOR)
    return np.asarray(A / (A + share), np.float32)


def measure_perplexity(counts: NDArray[np.int64]) -> float:
    """Compute exp(entropy) of tokens that occur ``counts`` (V,) times: 1 to V."""
    share = counts[counts > 0] / max(1, counts.sum())
    return float(np.exp2(-(share @ np.log2(share))))


def weigh(encoder: FrozenEncoder, texts: Sequence[str], words: Words | None) -> FrozenEncoder:
    """Weight the mean pooling by token frequencies of ``texts`` and of their language."""
    counts, at_large = count_tokens(encoder, texts), None
    if words is not None:
        counts = counts + count_tokens(encoder, words.sentences)
        at_large = compute_shares(tokenizer_of(encoder.directory, encoder.max_length), len(counts), words)
    return replace(encoder, pooling=replace(encoder.pooling, weights=compute_sif(counts, at_large)))


def count_tokens(encoder: FrozenEncoder, texts: Sequence[str]) -> NDArray[np.int64]:
    """Count each id of the vocabulary in ``texts``, (V,)."""
    vocabulary = vocabulary_of(encoder.directory)
    tokenize = tokenizer_of(encoder.directory, encoder.max_length)
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(texts), WINDOW):
        counts += np.bincount(tokenize(texts[start : start + WINDOW]).ids, minlength=vocabulary)
    return counts


def split_head(texts: Iterator[str]) -> tuple[list[str], Iterator[str]]:
    """Return the first HEAD texts, and an iterator of all."""
    head = list(islice(texts, HEAD))
    return head, chain(head, texts)
