"""An encoder as a folder for transformers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.exports.record import write_json, write_tensors
from fastflow.kernels.encoder import WORDS, mean_position
from fastflow.kernels.stored import widen
from fastflow.model import Model
from fastflow.model.encoder import encoder_shape, is_native, read_config, size_of
from fastflow.model.encoder.weights import WEIGHT_INDEX, MappedWeights, weight_files
from fastflow.model.tensors import MappedTensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"
POSITIONS = "embeddings.position_embeddings.weight"
OF_A_LAYER = re.compile(r"(^|\.)layer\.\d+\.")
LAYERS = {"distilbert": "n_layers"}  # other families have num_hidden_layers
WITH_LAYERS = ("modernbert",)  # exported with all layers, even to pool layer 0
FOREIGN = ("auto_map", "torch_dtype", "quantization_config")  # dropped: foreign code; the older name of dtype


def number_layers(model: Model) -> tuple[int, ...]:
    """Return the pooled layers as Sentence Transformers counts them: WORDS becomes layer 0."""
    layers = model.pooling.layers
    if WORDS not in layers:
        return layers
    if len(layers) > 1 and read_config(model.encoder).get("model_type") not in WITH_LAYERS:
        raise FastflowError(
            f"the pooling ({model.pooling.describe()}) cannot be exported to Sentence Transformers: one encoder there "
            "has one position table; fit the model with --pooling words or --pooling first-last, or export it with "
            "--to onnx"
        )
    return tuple(0 if layer == WORDS else layer for layer in layers)


def write_encoder(model: Model, folder: Path) -> bool:
    """Write configuration and weights; return whether unpooled layers were left out."""
    config = {name: value for name, value in read_config(model.encoder).items() if name not in FOREIGN}
    layers, kind = number_layers(model), config.get("model_type")
    config["dtype"] = "float32"  # else weights in half precision would be computed in it
    folder.mkdir(parents=True, exist_ok=True)
    bare = layers == (0,) and is_native(model.encoder) and kind not in WITH_LAYERS
    if bare:
        config[LAYERS.get(str(kind), "num_hidden_layers")] = 0
        write_tensors(folder / WEIGHTS, _read_embedding_layer(model, config))
    elif WORDS in model.pooling.layers and kind not in WITH_LAYERS:
        raise FastflowError(
            f"the pooling ({model.pooling.describe()}) of an encoder of the architecture {kind} cannot be exported to "
            "Sentence Transformers; fit the model with another --pooling"
        )
    else:
        index = model.encoder / WEIGHT_INDEX
        for path in [*weight_files(model.encoder), *([index] if index.is_file() else [])]:
            shutil.copyfile(path, folder / path.name)
        config["output_hidden_states"] = layers != (size_of(model.encoder).layers,)
    write_json(folder / CONFIG, config)
    return bare


def _read_embedding_layer(model: Model, config: dict[str, Any]) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for path in weight_files(model.encoder):
        for name, array in MappedTensors(path).arrays.items():
            if not OF_A_LAYER.search(name):
                found[name] = np.array(widen(array))
    if WORDS in model.pooling.layers:  # every row of positions becomes their mean
        name = next(name for name in found if name.endswith(POSITIONS))
        start = encoder_shape(read_config(model.encoder), model.encoder).position_start
        mean = mean_position(found[name].astype(np.float32), start)
        found[name] = np.tile(mean, (len(found[name]), 1))
    return found


def read_pooler(model: Model) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Read weight (D, D) and bias (D,) of BERT's pooler."""
    config = read_config(model.encoder)
    stored = MappedWeights(model.encoder, config, encoder_shape(config, model.encoder)).stored
    weight, bias = (np.array(widen(np.asarray(stored[f"pooler.{name}"])), np.float32) for name in ("weight", "bias"))
    return weight, bias
