"""What int8 has to know of a model before it runs, and what it costs: a few sentences by the equations in float32.

They show which columns of the products' operands are large, and how far int8 is from float32 for a model that records
no cost, so that no model is silently poor in int8. Weights are read from the mapped file layer by layer and let go of,
because a second encoder in memory would cost more than int8 saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.base import Backend, Floats
from fastflow.backends.reference import ReferenceBackend
from fastflow.errors import UsageError
from fastflow.kernels.panels import widen
from fastflow.model.kinds import Model
from fastflow.model.tokens import Tokens
from fastflow.model.weights import MappedWeights
from fastflow.stages.vectors import paired_cosine

LEAST_INT8 = 0.99  # to float32, of the worst of SENTENCES and SHORT
SENTENCES = (
    "A man is playing a guitar on the street.",
    "WHY ARE YOU SHOUTING?!",
    "Shares fell sharply.",
)
SHORT = ("x", "?")  # one token between the special ones, whose states are the largest
EXTREME = ("", "</s> <s> [SEP] [CLS]", "y" * 40, "." * 40)  # other columns are large in these than in sentences
NORMALISED = (".qkv", ".up")  # products whose operands come from a LayerNorm
UNEVEN = (*NORMALISED, ".down")  # products whose operands have columns that are far larger than the others


class Trial(NamedTuple):
    """A few texts by the equations: their tokens, (n, P) pooled vectors, and for products by name what is large.

    ``largest`` holds each column's largest operand, ``terms`` the largest operand times the largest weight.
    """

    tokens: Tokens
    exact: Floats
    largest: dict[str, Floats]
    terms: dict[str, Floats]


def trial(model: Model) -> Trial:
    """``model``'s encoder in float32 on SENTENCES and SHORT.

    The largest operands are those of SENTENCES, the largest terms those of EXTREME as well.
    """
    texts = [*SENTENCES, *SHORT]
    tokens = model.tokenizer()([*texts, *EXTREME])
    rows, largest, terms = tokens.offsets[len(SENTENCES)], {}, {}
    backend = Streamed(model, "float32", "cpu", None)

    def watch(name: str, operand: Floats) -> None:
        if name.endswith(NORMALISED):
            largest[name] = np.abs(operand[:rows]).max(axis=0)
        if name.endswith(UNEVEN):
            terms[name] = np.abs(operand).max(axis=0) * np.abs(backend.weight(name)).max(axis=0)

    backend.watch = watch
    exact = backend.pool(tokens)[: len(texts)]
    return Trial(model.tokenizer()(texts), exact, largest, terms)


def int8_cost(model: Model, opened: Backend, tried: Trial) -> str:
    """One line on the cost of int8 for ``model``, which is ``opened`` in it: as recorded, else as ``tried``.

    Raises a UsageError where the least cosine that is measured is under LEAST_INT8.
    """
    recorded = model.manifest.get("least_cosine", {}).get("int8")
    if isinstance(recorded, float):
        return f"int8: its least cosine to float32 was {recorded} when the model was made"
    least = float(paired_cosine(opened.pool(tried.tokens), tried.exact).min())
    if not least >= LEAST_INT8:
        raise UsageError(
            f"{model.path}: dtype int8 changes the embeddings too much, to a cosine of {least:.4f} to float32 where "
            f"{LEAST_INT8} is the least allowed; use bfloat16"
        )
    return f"int8: least cosine to float32 {least:.4f}, measured on {len(tried.exact)} texts when it was opened"


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
