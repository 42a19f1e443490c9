"""The places at which ``default`` fits and scores, and everything that is scored there.

A *place* is a choice of texts to fit on and of sets to score on. Places come in groups: *target*, every set on its own
sentences; *corpora*; *few*, 100 to 3,000 texts of a corpus; *subsets*, the sentences of a subset on itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastflow.bench.research.states import BACKGROUND, Rows, States
from fastflow.evaluation.evaluate import SEVEN, Pairs, read_pairs, score
from fastflow.stages.vectors import paired_cosine
from fastflow.train.choice.separability import Views
from fastflow.train.data.background import background
from fastflow.train.data.token_weights import A, sif_weights
from fastflow.train.options import POOLING

PAPER = "first-last"  # layers; every token counts equally
LAYERS = (POOLING, PAPER, "first-last-avg", "mean-of-layers:0,1", "last")
CHOOSING = SEVEN[:3]
CORPORA = ("snli", "flickr100k", "news", "qnli", "wiki", "wiki-sentences", "novels", "snli500", "mix")
CUT_FROM = ("snli", "news", "wiki-sentences", "novel-sentences")
DECIDING = {"corpora": {"snli", "news", "wiki-sentences", "mix"}, "few": {"snli", "news"}}
SIZES = (100, 300, 1000, 3000)


class Weighting(NamedTuple):
    """Token weights, the tokens of the background that they count, their constant, and the layers that are pooled."""

    kind: str
    prior: float | None
    a: float | None
    pooling: str = POOLING


PLAIN = Weighting("none", 0.0, A, PAPER)  # of the paper
EARLIER = Weighting("sif", 0.0, A, PAPER)  # of an earlier default
EQUAL, MIXED = Weighting("none", 0.0, A), Weighting("sif", None, None)


@dataclass(frozen=True)
class Place:
    """Parts, each the texts ``rows`` (None: all) of ``name`` and the (set, subset or None) scored with that fit."""

    group: str
    label: str
    parts: tuple[tuple[str, Rows | None, tuple[tuple[str, str | None], ...]], ...]
    seed: int = field(default=0)


class Bench:
    """Everything that is scored: states, pairs and weights, remembered; ``root`` holds what ``States`` keeps."""

    def __init__(self, encoder: str, data: Path, root: Path) -> None:
        self.pooled_as = {pooling: States(encoder, data, root / pooling, pooling) for pooling in LAYERS}
        self.states = states = self.pooled_as[POOLING]  # for what does not go by the layers
        self.vocabulary = int(json.loads((states.encoder.directory / "config.json").read_text())["vocab_size"])
        self.background = background(states.tokenize, self.vocabulary)
        self._pooled: dict[tuple[Any, ...], Any] = {}

    def of(self, weighting: Weighting) -> States:
        """The states of the layers that ``weighting`` pools."""
        return self.pooled_as[weighting.pooling]

    @cache  # noqa: B019 - one bench lives as long as the process
    def pairs(self, name: str) -> tuple[Pairs, Rows, Rows]:
        """The scored pairs of a set and the text numbers of both sides."""
        pairs = read_pairs(self.states.data / "sts" / f"{name}.tsv")
        where = {text: i for i, text in enumerate(self.states.texts(name))}
        first, second = (np.array([where[text.strip()] for text in side]) for side in (pairs.first, pairs.second))
        return pairs, first, second

    def subsets(self, name: str) -> list[str]:
        """The subset of each pair; of STSb its genre and file."""
        return ["/".join(subset.split("/")[:2]) for subset in self.pairs(name)[0].subsets]

    def rows(self, name: str, subset: str) -> Rows:
        """The texts of one subset."""
        _, first, second = self.pairs(name)
        inside = np.array(self.subsets(name)) == subset
        return np.unique(np.concatenate([first[inside], second[inside]]))

    def numbers(self, name: str, rows: Rows | None) -> Rows:
        """``rows``, or None as the numbers of all texts."""
        return np.arange(len(self.states.texts(name))) if rows is None else rows

    def weights(self, name: str, rows: Rows | None, weighting: Weighting) -> Any:
        """(vocabulary,) token weights counted in the texts ``rows``."""
        if weighting.kind == "none":
            return np.ones(self.vocabulary, np.float32)
        counts = self.states.counts(name, self.numbers(name, rows), self.vocabulary)
        return sif_weights(counts, self.background, weighting.prior, weighting.a)

    def pooled(self, of: str, name: str, rows: Rows | None, weighting: Weighting) -> Any:
        """(n, D) of the set ``of``, weighted as counted in the texts ``rows`` of ``name``; the last are remembered."""
        key = (
            (of, weighting)
            if weighting.kind == "none"
            else (of, name, None if rows is None else rows.tobytes(), weighting)
        )
        if key not in self._pooled:
            while len(self._pooled) > 40:
                self._pooled.pop(next(k for k in self._pooled if len(k) == 4))
            self._pooled[key] = self.of(weighting).pooled(of, self.weights(name, rows, weighting))
        return self._pooled[key]

    def pooled_of(self, name: str, rows: Rows | None, weighting: Weighting) -> Any:
        """(n, D) of the texts ``rows`` of ``name`` themselves."""
        return self.of(weighting).pooled(name, self.weights(name, rows, weighting), rows)

    def views(self, name: str, rows: Rows | None, weighting: Weighting) -> Views:
        """Both views of the texts ``rows`` of ``name``."""
        return self.of(weighting).views(name, self.weights(name, rows, weighting), self.numbers(name, rows))

    def ground(self, name: str, rows: Rows | None, weighting: Weighting, count: int) -> Any:
        """(count, D) of the background's first sentences, weighted as counted in the texts ``rows``; None of none."""
        if not count:
            return None
        pooled = self.of(weighting).pooled(BACKGROUND, self.weights(name, rows, weighting), np.arange(count))
        return pooled.astype(np.float32)

    def spearman(self, name: str, subset: str | None, z: Any) -> list[float]:
        """[all, wmean] of a set's embeddings ``z``; of a subset twice its one figure."""
        pairs, first, second = self.pairs(name)
        if subset is not None:
            inside = np.array(self.subsets(name)) == subset
            first, second = first[inside], second[inside]
            pairs = Pairs(name, [subset] * int(inside.sum()), pairs.scores[inside], [], [])
        row = score(pairs, paired_cosine(z[first], z[second]))
        return [row["all"], row["wmean"]]


def places(bench: Bench, seed: int) -> Iterator[Place]:
    """All places of ``seed``, which draws the texts of *few*."""
    yield Place("target", "target", tuple((name, None, ((name, None),)) for name in SEVEN), seed)
    whole = tuple((name, None) for name in SEVEN)
    for corpus in CORPORA:
        yield Place("corpora", corpus, ((corpus, None, whole),), seed)
    for corpus in CUT_FROM:
        viewed = bench.states.viewed(corpus)
        for size in SIZES:
            drawn = np.sort(np.random.default_rng(seed).permutation(viewed)[:size])
            yield Place("few", f"{corpus}, {size}", ((corpus, drawn, whole),), seed)
    for name in SEVEN:
        for subset in sorted(set(bench.subsets(name))):
            yield Place("subsets", f"{name}, {subset}", ((name, bench.rows(name, subset), ((name, subset),)),), seed)


def decides(place: Place) -> bool:
    """Whether the choice looks at ``place``: all the others confirm it."""
    corpora = {name for name, _, _ in place.parts}
    if place.group == "subsets":
        return corpora <= set(CHOOSING)
    return place.group == "target" or corpora <= DECIDING[place.group]
