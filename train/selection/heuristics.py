"""Recognise tuned encoders, and choose a pooling, without labels.

An untuned encoder crowds unrelated sentences (probe.txt) into a cone. So do E5 models, but these have Normalize.

In running text, a sentence should find the next one. Each candidate pools pairs of neighbouring sentences. Its value is
the mean reciprocal rank of the second sentence among all second sentences, by cosine to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from fastflow.model.encoder import size_of
from fastflow.model.sentence.modules import NormalizeModule
from fastflow.train.data.background import read_packaged_lines
from fastflow.train.data.corpus import cut_sentences, read_corpus
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.reporter import refuse
from fastflow.transforms.pooling import WORDS, Pooling, parse_pooling
from fastflow.transforms.vectors import cosine

CONE = 0.3  # an untuned encoder has a mean cosine of 0.48, a tuned one 0.04 (bench/results/verdicts.md)


def read_probe() -> list[str]:
    """Read the probe sentences."""
    return files("fastflow.train.selection").joinpath("probe.txt").read_text(encoding="utf-8").split("\n")[:-1]


def measure_crowding(encoder: FrozenEncoder) -> float:
    """Measure the mean cosine of two probe sentences."""
    embeddings = Embedder(encoder, "cpu")(read_probe()).astype(np.float64)
    similarity = cosine(embeddings, embeddings)
    return float(similarity[~np.eye(len(similarity), dtype=bool)].mean())


def find_tuning(encoder: FrozenEncoder) -> str | None:
    """Return how ``encoder``, pooled by its last layer, shows that it was tuned for similarity, or None."""
    found = measure_crowding(encoder)
    if abs(found) < CONE:
        return f"unrelated sentences have a mean cosine of {found:.2f}, where an untuned one has {CONE} and more"
    after = () if encoder.modules is None else encoder.modules.after
    return "its modules have Normalize" if any(isinstance(module, NormalizeModule) for module in after) else None


USUAL = "words"
PAIRS, FEWEST = 600, 200
LOOKED_AT, SHORTEST = 20_000, 4  # texts; words of a sentence
ERRORS = 2.0  # standard errors that a candidate must be ahead of USUAL
ORDERED = 4.0  # times the reciprocal rank of chance: novels have 5 to 9, other running text 20 and more; news 3
SORTED = 0.8  # share of neighbours in alphabetical order, from which lines are sorted

UNORDERED = f"pooling {USUAL}: not compared with others, because no running text was found; name some by --order-from"

Pair = tuple[str, str]
Matrix = NDArray[np.float64]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Ranking:
    """The reciprocal ranks (P,) of each candidate, by name."""

    ranks: dict[str, Matrix]

    @property
    def best(self) -> str:
        """USUAL, or the best candidate that is ahead by ERRORS standard errors."""
        usual, ahead = self.ranks[USUAL], {}
        for name, ranks in self.ranks.items():
            gain = ranks - usual
            if gain.mean() > ERRORS * gain.std() / np.sqrt(len(gain)):
                ahead[name] = gain.mean()
        return max(ahead, key=lambda name: ahead[name], default=USUAL)

    @property
    def means(self) -> dict[str, float]:
        """The mean reciprocal rank of each candidate."""
        return {name: round(float(ranks.mean()), 4) for name, ranks in self.ranks.items()}


def find_pairs(texts: Sequence[str]) -> list[Pair]:
    """Return at most PAIRS pairs of neighbouring sentences of LOOKED_AT texts; none if lines are sorted."""
    sentences = [part for text in texts[:LOOKED_AT] for part in cut_sentences(text) if len(part.split()) >= SHORTEST]
    keys = [("".join(filter(str.isalpha, sentence.casefold())), sentence) for sentence in sentences]
    for first, last in ((keys, keys[1:]), (keys[1:], keys)):
        if sum(a < b for a, b in zip(first, last, strict=False)) > SORTED * len(keys):
            return []
    starts = np.linspace(0, len(sentences) - 2, min(PAIRS, len(sentences) // 2)).astype(int)
    pairs = {sentences[i]: sentences[i + 1] for i in starts if sentences[i] != sentences[i + 1]}
    return list(pairs.items())


def load_english_pairs() -> list[Pair]:
    """Load the package's pairs of English sentences."""
    lines = read_packaged_lines("neighbours.txt.gz")
    return list(zip(lines[::2], lines[1::2], strict=True))


def rank(first: Matrix, second: Matrix) -> Matrix:
    """Compute the reciprocal rank (P,) of row i of ``second`` (P, D) by its cosine to row i of ``first``, centred."""
    mean = np.concatenate([first, second]).mean(axis=0)
    similarity = cosine(first - mean, second - mean)
    return np.asarray(1 / (similarity >= np.diag(similarity)[:, None]).sum(axis=1), np.float64)


def are_ordered(ranks: Matrix) -> bool:
    """Whether the mean of ``ranks`` (P,) is ORDERED times the chance."""
    return bool(ranks.mean() > ORDERED * np.mean(1 / np.arange(1, len(ranks) + 1)))


def name_candidates(depth: int) -> list[str]:
    """Return the poolings to compare for an encoder of ``depth`` layers."""
    names = [USUAL, "words-first-last", "first-last", "last"]
    return names if depth == 1 else [*names, f"mean-of-layers:{','.join(map(str, range(1, depth + 1)))}"]


def compare(
    encoder: FrozenEncoder, pairs: Sequence[Pair], device: str, say: Say = lambda message: None
) -> Ranking | None:
    """Rank the neighbours of ``pairs`` by each candidate, with the token weights of ``encoder``; None without an order.

    A pooling is linear in the layers, so three passes give all: the first layer, the last one, and the mean of all.
    """
    if len(pairs) < FEWEST:
        return None
    texts = [text for side in zip(*pairs, strict=True) for text in side]
    depth = size_of(encoder.directory).layers
    every = tuple(range(1, depth + 1))
    pooled: dict[tuple[int, ...], Matrix] = {(WORDS,): _embed(encoder, (WORDS,), texts, device)}
    found = {USUAL: rank(*np.split(pooled[WORDS,], 2))}
    if not are_ordered(found[USUAL]):
        return None
    say(
        f"pooling: five are compared on {len(pairs)} pairs of neighbouring sentences; --pooling {USUAL} leaves that out"
    )
    pooled |= {layers: _embed(encoder, layers, texts, device) for layers in {(1,), (depth,), every}}
    for name in name_candidates(depth)[1:]:
        layers = parse_pooling(name, depth).layers
        mean = pooled[layers] if layers in pooled else np.mean([pooled[layer,] for layer in layers], axis=0)
        found[name] = rank(*np.split(mean, 2))
    return Ranking(found)


def _embed(encoder: FrozenEncoder, layers: tuple[int, ...], texts: Sequence[str], device: str) -> Matrix:
    pooling = Pooling("mean", layers, encoder.pooling.weights)
    return Embedder(replace(encoder, pooling=pooling), device)(texts).astype(np.float64)


def choose_pooling(
    encoder: FrozenEncoder, texts: Sequence[str], english: bool, order_from: str | None, device: str, say: Say
) -> tuple[FrozenEncoder, str | None]:
    """Choose the layers that ``encoder`` averages; return it, and the reason in words.

    The neighbours are in the file ``order_from``, else in ``texts``, else the package's English pairs. Without any the
    pooling stays, and for the encoder in the package too: labelled tasks chose its pooling.
    """
    depth = size_of(encoder.directory).layers
    if not depth or (encoder.packaged and order_from is None):
        return encoder, None
    ranking, source = None, f"--order-from {order_from}"
    if order_from is not None:
        ranking = compare(encoder, find_pairs(read_corpus([order_from])), device, say)
        if ranking is None:
            raise refuse(
                "{order_from:{file}}: its neighbouring sentences are no more alike than others, or fewer than "
                f"{2 * FEWEST}; give running text of the language, or name a {{pooling}}",
                file=order_from,
            )
    else:
        ranking, source = compare(encoder, find_pairs(texts), device, say), "the corpus"
    if ranking is None and english:
        ranking, source = compare(encoder, load_english_pairs(), device, say), "the English novels in the package"
    if ranking is None:
        return encoder, UNORDERED
    values = ", ".join(f"{name} {value:.3f}" for name, value in ranking.means.items())
    reason = (
        f"pooling {ranking.best}: how well a sentence of {source} finds the next one (mean reciprocal rank): {values}"
    )
    pooling = parse_pooling(ranking.best, depth)
    return replace(encoder, pooling=replace(pooling, weights=encoder.pooling.weights)), reason
