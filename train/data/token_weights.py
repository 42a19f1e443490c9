"""Token weights from the frequencies of a corpus: frequent tokens count less in the mean of a sentence.

SIF, smooth inverse frequency (Arora et al., ICLR 2017): a token counts a / (a + p), p its share of the corpus's tokens.
[CLS] and [SEP] are tokens like others and the most frequent ones, so their weights are close to 0. A token that the
corpus does not hold counts 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from fastflow.model.architecture import read_config, whole_number
from fastflow.model.tokens import Tokenizer
from fastflow.train.data.embeddings import WINDOW, FrozenEncoder

A = 1e-3  # as published; not searched for
HEAD = 32768  # texts that the frequencies of a corpus read once are counted in


def sif_weights(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """(V,) weights in (0, 1] from how often each id of the vocabulary occurs (V,); all 1 when nothing does."""
    share = counts / max(1, int(counts.sum()))
    return np.asarray(A / (A + share), np.float32)


def weigh(encoder: FrozenEncoder, texts: Sequence[str]) -> FrozenEncoder:
    """``encoder`` with its mean pooling weighted by the token frequencies of ``texts``."""
    vocabulary = whole_number(read_config(encoder.directory), "vocab_size", encoder.directory)
    tokenize = Tokenizer(encoder.directory, encoder.max_length)
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(texts), WINDOW):
        counts += np.bincount(tokenize(texts[start : start + WINDOW]).ids, minlength=vocabulary)
    return replace(encoder, pooling=replace(encoder.pooling, weights=sif_weights(counts)))


def weigh_by_first(encoder: FrozenEncoder, texts: Iterator[str]) -> tuple[FrozenEncoder, Iterator[str]]:
    """``weigh`` for a corpus that is read once: by its first HEAD texts, which are then given back in front."""
    head = list(islice(texts, HEAD))
    return weigh(encoder, head), chain(head, texts)
