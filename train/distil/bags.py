"""Make bags of tokens: each token's share of a text, without special and unknown tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fastflow.errors import UsageError
from fastflow.model.tokenizer import UNKNOWN

BLOCK = 4096


def list_special_ids(tokenizer: Any) -> list[int]:
    """List the ids of special and unknown tokens."""
    found = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return sorted(found | {i for i in map(tokenizer.token_to_id, UNKNOWN) if i is not None})


class Bags:
    """Makes bags of texts; a token counts by its weight in ``weights`` (V,), None: 1."""

    def __init__(self, tokenizer: Any, weights: NDArray[np.float32] | None = None) -> None:
        self._tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.uniform, self.weights = weights is None, weights
        counted = np.ones(self.size) if weights is None else weights.astype(np.float64)
        counted[list_special_ids(tokenizer)] = 0
        self._weights = counted

    def find_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        found = []
        for start in range(0, len(texts), BLOCK):
            for encoding in self._tokenizer.encode_batch_fast(texts[start : start + BLOCK], add_special_tokens=False):
                ids = np.array(encoding.ids, np.int64)
                found.append(ids[self._weights[ids] > 0])
        return found

    def weigh(self, ids: Sequence[NDArray[np.int64]]) -> sparse.csr_array:
        """Make the bags (n, V) float64 of n texts' ``ids``; zeros for a text without a token."""
        lengths = np.array([len(row) for row in ids], np.int64)
        flat = np.concatenate([np.empty(0, np.int64), *ids])
        ends = np.concatenate([[0], np.cumsum(lengths)])
        weights = self._weights[flat]
        sums = np.add.reduceat(np.append(weights, 0.0), ends[:-1]) if len(ids) else np.empty(0)
        share = weights / np.repeat(np.where(lengths > 0, sums, 1.0), lengths)
        found = sparse.csr_array((share, flat, ends), shape=(len(ids), self.size))
        found.sum_duplicates()
        return found

    def __call__(self, texts: Sequence[str]) -> sparse.csr_array:
        return self.weigh(self.find_ids(texts))


def find_split_words(tokenizer: Any, texts: Iterable[str], count: int) -> list[str]:
    """Find the ``count`` most frequent normalized words that a WordPiece tokenizer splits."""
    from tokenizers.models import WordPiece

    if not isinstance(tokenizer.model, WordPiece):
        kind = type(tokenizer.model).__name__
        raise UsageError(f"--words is for the tokenizers of BERT, WordPiece, and this one is {kind}: leave it out")
    found: Counter[str] = Counter()
    for text in texts:
        normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        found.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    several: list[str] = []
    for word in sorted(found, key=lambda word: (-found[word], word)):
        if len(several) == count or found[word] < 2:
            break
        if word.isalnum() and len(tokenizer.model.tokenize(word)) > 1:
            several.append(word)
    return several


def add_words(tokenizer: Any, words: Sequence[str]) -> None:
    """Add tokens for whole ``words``: vocabulary entries would also match starts of longer words."""
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=True) for word in words])
