"""Token weights (SIF): frequent tokens count less in the mean of a text.

SIF, smooth inverse frequency (Arora et al., ICLR 2017): a token counts a / (a + p), p its share of the language's
tokens. [CLS] and [SEP] are tokens like others, and the commonest, so they all but vanish. A corpus shows its subject's
words as if they were common everywhere, which would throw the subject away. So p is (n / N + PRIOR q) / (1 + PRIOR),
n / N the token's share of the corpus and q its share in the language at large (``background``): the corpus alone
decides on words that the language at large does not have. The sentences of the language count with the corpus, so that
a few texts of one subject decide on little. Without words of its language p is the share of the corpus. A token of
neither counts 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from fastflow.model.encoder.architecture import vocabulary_of
from fastflow.model.kinds import tokenizer_of
from fastflow.train.data.background import Words, background
from fastflow.train.data.embeddings import WINDOW, FrozenEncoder

A = 5e-4  # chosen with PRIOR in bench/results/verdicts.md
PRIOR = 20.0  # times the corpus's own share
HEAD = 32768  # texts that the frequencies of a corpus read once are counted in


def sif_weights(
    counts: NDArray[np.int64], at_large: NDArray[np.float64] | None = None, prior: float = PRIOR, a: float = A
) -> NDArray[np.float32]:
    """(V,) weights in (0, 1] from how often each id of the vocabulary occurs (V,) and its share at large, (V,)."""
    share = counts / max(1.0, float(counts.sum()))
    if at_large is not None:
        share = (share + prior * at_large) / (1 + prior)
    return np.asarray(a / (a + share), np.float32)


def perplexity(counts: NDArray[np.int64]) -> float:
    """2 to the entropy, in bits, of the tokens of a corpus that occur ``counts`` (V,) times: from 1 to V."""
    share = counts[counts > 0] / max(1, counts.sum())
    return float(np.exp2(-(share @ np.log2(share))))


def weigh(encoder: FrozenEncoder, texts: Sequence[str], words: Words | None) -> FrozenEncoder:
    """``encoder`` with its mean pooling weighted by the token frequencies of ``texts`` and of their language."""
    return weigh_by(encoder, token_counts(encoder, texts), words)


def token_counts(encoder: FrozenEncoder, texts: Sequence[str]) -> NDArray[np.int64]:
    """(V,) how often each id of the vocabulary occurs in ``texts``; counts of parts of a corpus add up."""
    vocabulary = vocabulary_of(encoder.directory)
    tokenize = tokenizer_of(encoder.directory, encoder.max_length)
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(texts), WINDOW):
        counts += np.bincount(tokenize(texts[start : start + WINDOW]).ids, minlength=vocabulary)
    return counts


def weigh_by(encoder: FrozenEncoder, counts: NDArray[np.int64], words: Words | None) -> FrozenEncoder:
    """``weigh`` by the counts (V,) of a corpus, to which those of its language's sentences are added."""
    at_large = None
    if words is not None:
        counts = counts + token_counts(encoder, words.sentences)
        at_large = background(tokenizer_of(encoder.directory, encoder.max_length), len(counts), words)
    return replace(encoder, pooling=replace(encoder.pooling, weights=sif_weights(counts, at_large)))


def first_of(texts: Iterator[str]) -> tuple[list[str], Iterator[str]]:
    """The first HEAD texts of a corpus that is read once, and all of them."""
    head = list(islice(texts, HEAD))
    return head, chain(head, texts)
