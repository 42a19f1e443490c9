"""The largest operands of a model, which int8 needs before it runs, and the cost of int8: a few sentences by the
equations in float32.

The trial shows which columns of the products' operands are large, and how far int8 is from float32, so that no model is
silently poor in int8. A model that fastflow saved records its trial. Weights are read from the mapped file layer by
layer and released, because a second encoder in memory would cost more than int8 saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.base import Calibrator, Floats
from fastflow.backends.reference import ReferenceBackend
from fastflow.errors import UsageError
from fastflow.kernels.panels import widen
from fastflow.model.encoder.int8 import Int8
from fastflow.model.encoder.weights import MappedWeights
from fastflow.model.kinds import Model
from fastflow.model.tokenizer.encode import Tokens
from fastflow.stages.vectors import paired_cosine
from fastflow.values import short

VERSION = 2  # of the trial: raised when its texts change, or the numbers of int8's kernels
LEAST_INT8 = 0.99  # to float32, of the worst of TEXTS and of the special tokens
SENTENCES = (
    "A man is playing a guitar on the street.",
    "WHY ARE YOU SHOUTING?!",
    "Shares fell sharply.",
)
# texts of few tokens or of odd ones, whose states are the largest; and one that is long
HARD = (
    "",
    "x",
    "?",
    "thank you",
    "y" * 60,
    "." * 40,
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    " ".join(SENTENCES[i % 3] for i in range(16)),
)
TEXTS = (*SENTENCES, *HARD)
NORMALISED = (".qkv", ".up")  # products whose operands come from a LayerNorm
UNEVEN = (*NORMALISED, ".down")  # products whose operands have columns that are far larger than the others


class Trial(NamedTuple):
    """A few texts by the equations: their tokens, (n, P) pooled vectors, and for products by name what is large.

    The texts from ``alone`` on are special tokens alone. ``largest`` holds each column's largest operand, ``terms`` the
    largest operand times the largest weight.
    """

    texts: tuple[str, ...]
    alone: int
    tokens: Tokens
    exact: Floats
    largest: dict[str, Floats]
    terms: dict[str, Floats]


def magnitudes(matrix: Floats) -> Floats:
    """The largest magnitude in each column of ``matrix`` (n, k), without a copy."""
    return np.asarray(np.maximum(matrix.max(axis=0), -matrix.min(axis=0)))


def trial(model: Model) -> Trial:
    """``model``'s encoder in float32 on TEXTS and its special tokens, first together and then each alone.

    The largest operands are those of SENTENCES, the largest terms those of TEXTS and of the special tokens together: in
    odd ones other columns are large.
    """
    tokenize = model.tokenizer()
    together = (*TEXTS, " ".join(tokenize.special))
    texts = (*together, *tokenize.special)
    tokens = tokenize(texts)
    rows, odd = tokens.offsets[[len(SENTENCES), len(together)]]
    largest: dict[str, Floats] = {}
    terms: dict[str, Floats] = {}
    backend = Streamed(model, "float32", "cpu", None)

    def watch(name: str, operand: Floats) -> None:
        if name.endswith(NORMALISED):
            largest[name] = magnitudes(operand[:rows])
        if name.endswith(UNEVEN):
            terms[name] = magnitudes(operand[:odd]) * magnitudes(backend.weight(name))

    backend.watch = watch
    return Trial(texts, len(together), tokens, backend.pool(tokens), largest, terms)


def recorded(model: Model) -> Int8 | None:
    """The trial that ``model`` was saved with, if its texts and kernels are today's."""
    return model.int8 if model.int8 is not None and model.int8.version == VERSION else None


def concluded(tried: Trial, opened: Calibrator, pooled: Floats) -> Int8:
    """The record of ``tried``, given the ``pooled`` vectors of its tokens in int8; embeddings are compared.

    A special token alone that int8 would spoil keeps its vector in float32: two equal tokens in a row may come apart in
    an encoder's layers, by a difference that any rounding upsets.
    """
    cosines = paired_cosine(*(opened.calibrate(np.asarray(x, np.float32)) for x in (pooled, tried.exact)))
    exact = {}
    for i in range(tried.alone, len(cosines)):
        if not cosines[i] >= LEAST_INT8 and np.isfinite(tried.exact[i]).all():
            ids = tried.tokens.ids[tried.tokens.offsets[i] : tried.tokens.offsets[i + 1]]
            exact[tuple(map(int, ids))], cosines[i] = np.asarray(tried.exact[i], np.float32), 1.0
    worst = int(np.argmin(cosines))  # NaN is the least
    return Int8(VERSION, round(float(cosines[worst]), 6), tried.texts[worst], tried.largest, tried.terms, exact)


def int8_cost(model: Model, found: Int8, when: str) -> str:
    """One line on the cost of int8 for ``model``, ``found`` at the time that ``when`` names.

    Raises a UsageError if the least cosine is below LEAST_INT8.
    """
    cosine, text = f"{found.least_cosine:.4f}", short(found.text)
    if not found.least_cosine >= LEAST_INT8:
        raise UsageError(
            f"{model.path}: dtype int8 changes the embeddings too much, to a cosine of {cosine} to float32 for the "
            f"text {text}, and {LEAST_INT8} is the least allowed; use bfloat16"
        )
    said = f"int8: least cosine to float32 {cosine} over {len(TEXTS) + 1} texts and each special token alone, {when}"
    kept = "" if not found.exact else (
        f"; {len(found.exact)} of these tokens would lose more: alone they have float32's vectors, in a text with "
        "words they may still lose it"
    )  # fmt: skip
    return f"{said}; the worst is {text}{kept}"


class Streamed(ReferenceBackend):
    """The reference backend in float32, whose weights stay in the mapped file."""

    def load(self, model: Model, config: dict[str, Any]) -> Mapping[str, Any]:
        """The canonical arrays, each made when it is asked for."""
        return _Stream(MappedWeights(model.encoder, config, self._shape))

    def weight(self, product: str) -> Floats:
        """The matrix of a product by name."""
        found: Floats = self._weights[f"{product}.weight"]
        return found


class _Rows:
    """The table of words, of which only the rows that are asked for are read."""

    def __init__(self, stored: NDArray[Any]) -> None:
        self._stored = stored

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, ids: NDArray[Any]) -> NDArray[Any]:
        return widen(self._stored[ids])


class _Stream(Mapping[str, Any]):
    """``load_weights`` without keeping anything, of weights that are known to be finite."""

    def __init__(self, mapped: MappedWeights) -> None:
        self._mapped = mapped

    def __getitem__(self, name: str) -> Any:
        stored = self._mapped.stored[name]
        self._mapped.release()
        if isinstance(stored, tuple):
            return np.concatenate([widen(part) for part in stored], dtype=np.float32, casting="same_kind")
        return _Rows(stored) if name == "word" else widen(stored).astype(np.float32, copy=False)

    def __contains__(self, name: object) -> bool:
        return name in self._mapped.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapped.stored)

    def __len__(self) -> int:
        return len(self._mapped.stored)
