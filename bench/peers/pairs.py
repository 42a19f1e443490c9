"""Libraries that find near pairs of vectors or the texts to keep, each with its defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastflow.bench.measure.row import Array
from fastflow.search.pairs import duplicates

LIMIT = 0.9  # SemHash's default
ROWS = 1024  # of a tile of NumPy's loop
Find = Callable[[Sequence[str], Any], Callable[[], Array]]


class PairEngine(NamedTuple):
    """``open``: a Runtime and threads -> the timed function of texts and vectors (n, D) of length 1, or None.

    It returns another one, of what was found. ``rule``: "pairs" (p, 2), the lower row first; rows "kept" by an
    approximate index; or rows kept if one of each of its "groups" is. Time grows as n^``power``. ``takes_texts``:
    without vectors it embeds the texts.
    """

    open: Callable[[Any, int], Find]
    rule: str = "pairs"
    power: float = 2
    takes_texts: bool = False


def open_ours(model: Any, threads: int) -> Find:
    """Open fastflow.duplicates."""

    def find(texts: Sequence[str], x: Any) -> Callable[[], Array]:
        edges = duplicates(texts if x is None else x, model, above=LIMIT, threads=threads).pairs.edges
        return lambda: np.stack([edges["earlier"], edges["later"]], axis=1).astype(np.int64)

    return find


def open_semhash(model: Any, _: int) -> Find:
    """Open SemHash, which gets our vectors."""
    from semhash import SemHash

    def find(texts: Sequence[str], x: Any) -> Callable[[], Array]:
        opened = SemHash.from_records(texts, model=model) if x is None else SemHash.from_embeddings(x, texts, model)
        kept = set(opened.self_deduplicate(LIMIT).selected)
        return lambda: np.flatnonzero([text in kept for text in texts])

    return find


def open_faiss(_: Any, threads: int) -> Find:
    """Open the exact index of FAISS."""
    import faiss

    faiss.omp_set_num_threads(threads)

    def find(_: Sequence[str], x: Any) -> Callable[[], Array]:
        index = faiss.IndexFlatIP(x.shape[1])
        index.add(x)
        ends, _, others = index.range_search(x, LIMIT)
        rows = np.repeat(np.arange(len(x)), np.diff(ends.astype(np.int64)))
        return lambda: np.stack([rows, others], axis=1)[rows < others]

    return find


def open_numpy(_: Any, __: int) -> Find:
    """Open a loop over tiles of products."""

    def find(_: Sequence[str], x: Any) -> Callable[[], Array]:
        found = []
        for at in range(0, len(x), ROWS):
            rows, others = np.nonzero(x[at : at + ROWS] @ x[at:].T >= LIMIT)
            later = others > rows
            found.append(np.stack([rows[later], others[later]], axis=1) + at)
        return lambda: np.concatenate(found)

    return find


def open_mining(_: Any, __: int) -> Find:
    """Open paraphrase_mining of Sentence Transformers: at most 100 texts near each, 500,000 pairs in all."""
    import torch
    from sentence_transformers.util import paraphrase_mining_embeddings

    def find(_: Sequence[str], x: Any) -> Callable[[], Array]:
        pairs = paraphrase_mining_embeddings(torch.from_numpy(x))
        return lambda: np.array([(a, b) for cosine, a, b in pairs if cosine >= LIMIT], np.int64).reshape(-1, 2)

    return find


def open_communities(_: Any, __: int) -> Find:
    """Open community_detection of Sentence Transformers, for groups of two texts or more."""
    from sentence_transformers.util import community_detection

    def find(_: Sequence[str], x: Any) -> Callable[[], Array]:
        found = community_detection(x, threshold=LIMIT, min_community_size=2)
        return lambda: np.setdiff1d(np.arange(len(x)), [row for group in found for row in group[1:]])

    return find


PAIRS = {
    "fastflow": PairEngine(open_ours, takes_texts=True),
    "semhash": PairEngine(open_semhash, "kept", 1.2, True),
    "faiss": PairEngine(open_faiss),
    "numpy": PairEngine(open_numpy),
    "paraphrase-mining": PairEngine(open_mining),
    "community-detection": PairEngine(open_communities, "groups"),
}
