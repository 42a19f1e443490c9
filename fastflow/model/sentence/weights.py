"""Convert Sentence Transformers' modules and weights to the form that backends run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import HEAVIEST, LEAST, LIGHTEST, Dense, Head, Norm, Unit
from fastflow.kernels.stored import usable
from fastflow.model.encoder import read_config, whole_number
from fastflow.model.encoder.weights import BAD, encoder_files
from fastflow.model.hashing import MODULES, is_file
from fastflow.model.sentence.directory import SETTINGS, Modules
from fastflow.model.sentence.modules import (
    TRANSFORMER_FILES,
    DenseModule,
    LayerNormModule,
    LayersModule,
    StaticModule,
    check_fields,
    module_config,
)
from fastflow.model.tensors import Arrays, read_tensors
from fastflow.transforms.pooling import WORDS, Pooling
from fastflow.values import short

WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"


def head_of(modules: Modules) -> Head:
    """Read the modules after the pooling, in float32."""
    head: list[Dense | Unit | Norm] = []
    for module in modules.after:
        if isinstance(module, DenseModule):
            head.append(_dense(module))
        elif isinstance(module, LayerNormModule):
            size = (module.width,)
            scale, bias = _read(module.directory, {"norm.weight": size, "norm.bias": size})
            head.append(Norm(scale, bias))
        else:
            head.append(Unit())
    return tuple(head)


def pooling_of(modules: Modules, depth: int) -> Pooling:
    """Return the pooling for ``depth`` layers, with weights of layers and tokens."""
    if isinstance(modules.pooling, StaticModule):
        return Pooling("mean", (WORDS,))
    mode, layers = "+".join(modules.pooling.modes), [depth]
    shares: list[float] | None = None
    if modules.layers is not None:
        layers, shares = _shares(modules.layers)
        if "max" in modules.pooling.modes and len(layers) > 1:
            raise FastflowError(
                f"{modules.path}: WeightedLayerPooling over several layers and the pooling mode max cannot run together"
            )
    table = None
    if modules.word_weights is not None:
        encoder = modules.transformer.directory
        vocabulary = whole_number(read_config(encoder), "vocab_size", encoder)
        table = read_word_weights(modules.word_weights.directory, vocabulary)
    return Pooling(mode, tuple(layers), table, None if shares is None else tuple(shares))


def read_word_weights(folder: Path, vocabulary: int) -> NDArray[np.float32]:
    """Read token weights (vocabulary,) in float32, each 0 or from LEAST to HEAVIEST."""
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


def files_of(modules: Modules) -> list[Path]:
    """List the files that decide an embedding, in a fixed order."""
    encoder = modules.transformer.directory
    own = [modules.path / MODULES, modules.path / SETTINGS, *(encoder / name for name in TRANSFORMER_FILES)]
    for folder in modules.folders:
        own += [folder / "config.json", folder / WEIGHTS]
    return [*encoder_files(encoder), *(path for path in own if is_file(path))]


def _shares(module: LayersModule) -> tuple[list[int], list[float]]:
    (found,) = _read(module.directory, {"layer_weights": (module.last + 1 - module.start,)})
    weights = found.astype(np.float64)
    total = weights.sum()
    if not abs(total) > LIGHTEST:
        raise FastflowError(f"{module.directory / WEIGHTS}: the sum of layer_weights is 0")
    kept = np.flatnonzero(weights)
    return [int(i) + module.start for i in kept], [float(weights[i] / total) for i in kept]


def _dense(module: DenseModule) -> Dense:
    size = (module.out_features, module.in_features)
    names: dict[str, tuple[int, ...]] = {"linear.weight": size}
    if module.bias:
        names["linear.bias"] = size[:1]
    if module.residual and size[0] != size[1]:
        names["residual.weight"] = size
    found = dict(zip(names, _read(module.directory, names), strict=True))
    bias = found.get("linear.bias", np.zeros(size[0], np.float32))
    return Dense(found["linear.weight"], bias, module.activation, module.residual, found.get("residual.weight"))


def _read(folder: Path, sizes: Mapping[str, tuple[int, ...]]) -> list[NDArray[np.float32]]:
    arrays = _tensors(folder)
    found = [_take(arrays, folder, name, size) for name, size in sizes.items()]
    if arrays:
        raise FastflowError(f"{folder / WEIGHTS}: tensor {min(arrays)} is unknown to the module's config.json")
    return found


def _tensors(folder: Path) -> Arrays:
    if is_file(folder / WEIGHTS):
        return read_tensors(folder / WEIGHTS)
    if is_file(folder / PICKLE):
        raise FastflowError(
            f"{folder / PICKLE} is a pickle, which fastflow never opens: convert the directory with "
            "SentenceTransformer(DIR).save(NEW_DIR), which writes model.safetensors"
        )
    raise FastflowError(f"{folder / WEIGHTS} is missing; copy the whole directory")


def _take(arrays: Arrays, folder: Path, name: str, size: tuple[int, ...]) -> NDArray[np.float32]:
    array, where = arrays.pop(name, None), f"{folder / WEIGHTS}: tensor {name}"
    if array is None:
        raise FastflowError(f"{where} is missing")
    if array.dtype.kind != "f" or array.shape != size:
        raise FastflowError(f"{where} is {array.dtype} of shape {array.shape}, and config.json needs {size}")
    if not usable(array):
        raise FastflowError(f"{where} {BAD}")
    return array.astype(np.float32)
