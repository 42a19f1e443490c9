"""Pooling: hidden states of chosen layers -> one vector for each text.

Layer 0 is the embedding layer, L the last layer, WORDS (-1) the embedding layer with one mean position for all tokens.
A mean may weigh frequent tokens less (SIF, Arora et al., ICLR 2017).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.encoder import HEAVIEST, LIGHTEST, MODES
from fastflow.kernels.encoder import WORDS as WORDS

HELP = (
    "first-last, embedding-first-last, words, words-first-last, last, cls, pooler, mean-of-layers:I,J,... (words is an "
    "item too, and 3*I counts three times); historical names are accepted as aliases"
)
WEIGHTED = "weighted-mean"  # not "mean", so that readers without token weights refuse it
BY_SHARES = "-by-shares"
_WORDS_SAID = "word embeddings without positions"
MOST_COUNT = 999
_ITEM = r"(?:[1-9]\d{0,2}\*)?(?:words|\d+)"


@dataclass(frozen=True)
class Pooling:
    """A pooling ``mode``: mean (over tokens and ``layers``), cls ([CLS] state) or pooler (tanh pooler).

    ``weights`` (vocabulary,) float32: token weights of the mean. ``shares``: layer weights of sum 1; None: equal.
    Sentence Transformers' modes are ``kernels.encoder.MODES``, joined by ``+``; token weights may then be 0.
    """

    mode: str
    layers: tuple[int, ...]
    weights: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    shares: tuple[float, ...] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.mode.split("+"))

    @property
    def plain(self) -> bool:
        return self.mode == "mean" or (self.mode in ("cls", "pooler") and self.shares is None)

    @property
    def of_embeddings(self) -> bool:
        """Whether only the embedding layer is computed."""
        return max(self.layers) <= 0

    @property
    def factors(self) -> tuple[float, ...]:
        return (1 / len(self.layers),) * len(self.layers) if self.shares is None else self.shares

    def as_dict(self) -> dict[str, object]:
        """Return the entry of ``fastflow.json``; a mean with token weights has mode WEIGHTED."""
        mode = self.mode if self.weights is None else WEIGHTED
        if self.shares is None:
            return {"mode": mode, "layers": list(self.layers)}
        return {"mode": mode + BY_SHARES, "layers": list(self.layers), "shares": list(self.shares)}

    def describe(self) -> str:
        shares = dict.fromkeys(self.layers, "")
        if self.shares is not None:
            shares = {layer: f" ({share:.3g})" for layer, share in zip(self.layers, self.shares, strict=True)}
        numbers = [f"{layer}{shares[layer]}" for layer in self.layers if layer != WORDS]
        layers = [_WORDS_SAID + shares[WORDS]] if WORDS in self.layers else []
        if numbers:
            *others, last = numbers
            layers.append(f"layers {', '.join(others)} and {last}" if others else f"layer {last}")
        what = " and ".join(MODES[part].about if part in MODES else "tanh pooler over [CLS]" for part in self.parts)
        weighted = "" if self.weights is None else "weighted "
        return f"{weighted}{what} of {' and of '.join(layers)}"


def check_weights(weights: NDArray[Any] | None, vocabulary: int, where: str) -> NDArray[np.float32]:
    """Return token ``weights``; raises a FastflowError that names ``where`` for a weight near 0, or too large."""
    if weights is None:
        raise FastflowError(f"{where} is missing; copy or train the model again")
    if weights.shape != (vocabulary,) or weights.dtype != np.float32:
        raise FastflowError(f"{where}: must be float32 of shape ({vocabulary},), one for each id of the vocabulary")
    if not ((weights >= LIGHTEST) & (weights <= HEAVIEST)).all():  # false for NaN
        raise FastflowError(f"{where}: every weight must be between {LIGHTEST:g} and {HEAVIEST:g}")
    return weights


def parse_pooling(name: str, depth: int) -> Pooling:
    """Return the pooling ``name`` of an encoder of ``depth`` layers; raises a UsageError for an unknown one.

    Historical names have the layers of the official code: avg = last; avg-last-1 = layer 1; avg-last-2 = last2avg =
    first-last; avg-last-3 = 1, L, L-1; avg-last-concat-N = avg-last-N; avg-last-last-N = layer L+1-N.
    """
    named = {
        **dict.fromkeys(("last", "avg"), (depth,)),
        **dict.fromkeys(("first-last", "last2avg"), (1, depth)),
        "embedding-first-last": (0, 1, depth),
        "words": (WORDS,),
        "words-first-last": (WORDS, 1, depth),
        "first-last-avg": (0, depth),
    }
    if name in named:
        return _mean(name, depth, *named[name], least=WORDS)
    if name in ("cls", "pooler"):
        if name == "pooler" and depth == 0:
            raise UsageError("pooling 'pooler' is of the last layer, and this encoder has none")
        return Pooling(name, (depth,))
    if match := re.fullmatch(r"avg-last-last-(\d+)", name):
        return _mean(name, depth, depth + 1 - int(match[1]))
    if match := re.fullmatch(r"avg-last-(?:concat-)?([1-9]\d*)", name):
        if int(match[1]) > depth:
            raise UsageError(f"pooling {name!r} asks for more layers than the {depth} of this encoder")
        # the official loop indexes layers [-i] for i = 0..N-1: -0 is the first layer
        return _mean(name, depth, 1, *(depth + 1 - i for i in range(1, int(match[1]))))
    if match := re.fullmatch(rf"mean-of-layers:({_ITEM}(?:,{_ITEM})*)", name):
        return _by_items(name, depth, match[1].split(","))
    raise UsageError(f"unknown pooling {name!r}; use {HELP}")


def make_raw(pooling: Pooling, depth: int) -> Pooling:
    """Make the pooling that the pages call raw: first and last layer, every token counting 1; a table has no layers."""
    return parse_pooling("first-last", depth) if depth else replace(pooling, weights=None)


def pooling_name(pooling: Pooling) -> str:
    """Return a name that ``parse_pooling`` turns into ``pooling``."""
    if pooling.mode != "mean":
        return pooling.mode
    items = ["words" if layer == WORDS else str(layer) for layer in pooling.layers]
    if pooling.shares is not None:
        from fractions import Fraction

        parts = [Fraction(share).limit_denominator(MOST_COUNT * len(items)) for share in pooling.shares]
        whole = math.lcm(*(part.denominator for part in parts))
        counts = [int(part * whole) for part in parts]
        items = [f"{count}*{item}" if count > 1 else item for count, item in zip(counts, items, strict=True)]
    return f"mean-of-layers:{','.join(items)}"


def _by_items(name: str, depth: int, items: list[str]) -> Pooling:
    counts, layers = [], []
    for item in items:
        count, _, layer = item.rpartition("*")
        counts.append(int(count or 1))
        layers.append(WORDS if layer == "words" else int(layer))
    found = _mean(name, depth, *layers, least=WORDS)
    if len(set(counts)) == 1:
        return found
    if len(found.layers) < len(layers):
        raise UsageError(f"pooling {name!r} names a layer twice: with a number before * each layer stands once")
    return Pooling("mean", found.layers, shares=tuple(count / sum(counts) for count in counts))


def _mean(name: str, depth: int, *layers: int, least: int = 0) -> Pooling:
    if not layers or min(layers) < least or max(layers) > depth:
        raise UsageError(f"pooling {name!r} asks for a layer outside 0 to {depth}, the layers of this encoder")
    return Pooling("mean", tuple(dict.fromkeys(layers)))
