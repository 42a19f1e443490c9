"""Sentence Transformers' modules before the pooling: weights of layers and of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder.shape import HEAVIEST, LEAST
from fastflow.model.sentence.modules import check_fields, module_config
from fastflow.values import is_whole, short


@dataclass(frozen=True)
class WordWeightsModule:
    """Token weights by id: states are multiplied by them, and a mean divides by their sum."""

    directory: Path

    def __str__(self) -> str:
        return "WordWeights"


@dataclass(frozen=True)
class LayersModule:
    """The weighted mean of the layers ``start`` to ``last``; weights in ``directory``."""

    directory: Path
    start: int
    last: int

    def __str__(self) -> str:
        return f"WeightedLayerPooling (layers {self.start} to {self.last})"


def read_layers(folder: Path, config: dict[str, Any], encoder: Path, hidden: int, depth: int) -> LayersModule:
    """Read a WeightedLayerPooling for an encoder of ``depth`` layers of width ``hidden``."""
    found, place = module_config(folder, "WeightedLayerPooling")
    widths = ("embedding_dimension", "word_embedding_dimension")
    check_fields(found, (*widths, "layer_start", "num_hidden_layers"), place)
    for name in widths:
        if found.get(name, hidden) != hidden:
            raise FastflowError(f"{place}, field {name}: must be {hidden}, the encoder's, not {short(found[name])}")
    if found.get("num_hidden_layers", 12) != depth:
        shown = short(found.get("num_hidden_layers", 12))
        raise FastflowError(f"{place}, field num_hidden_layers: must be {depth}, the encoder's, not {shown}")
    start = found.get("layer_start", 4)
    if not is_whole(start, 0, depth):
        raise FastflowError(f"{place}, field layer_start: must be 0 to {depth}, not {short(start)}")
    if config.get("output_hidden_states") is not True:
        raise FastflowError(
            f"{encoder / 'config.json'}, field output_hidden_states: must be true, or Sentence Transformers passes "
            "over the module WeightedLayerPooling"
        )
    return LayersModule(folder, start, depth)


def read_word_weights(folder: Path, vocabulary: int) -> NDArray[np.float32]:
    """Read a WordWeights module; returns (vocabulary,) float32 weights by id.

    Raises a FastflowError for a weight that is neither 0 nor LEAST to HEAVIEST: Sentence Transformers may round others
    differently.
    """
    found, place = module_config(folder, "WordWeights")
    check_fields(found, ("vocab", "word_weights", "unknown_word_weight"), place)
    words, weights, other = found.get("vocab"), found.get("word_weights"), found.get("unknown_word_weight", 1)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise FastflowError(f"{place}, field vocab: must be a list of texts")
    if len(words) < vocabulary:
        raise FastflowError(
            f"{place}, field vocab: lists {len(words)} words, and the encoder's vocabulary has {vocabulary}"
        )
    if not isinstance(weights, dict):
        raise FastflowError(f"{place}, field word_weights: must be an object of numbers")
    for name, value in [("unknown_word_weight", other), *weights.items()]:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _usable(value):
            raise FastflowError(
                f"{place}: the weight of {short(name)} must be 0, or {LEAST:g} to {HEAVIEST:g}, not {short(value)}"
            )
    chosen = [weights.get(word, weights.get(word.lower(), other)) for word in words[:vocabulary]]
    return np.array(chosen, np.float32)


def _usable(value: float) -> bool:
    return value == 0 or (math.isfinite(value) and LEAST <= value <= HEAVIEST)
