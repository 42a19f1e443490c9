"""The weights of an encoder of the BERT family -> one canonical set of arrays.

BERT, MiniLM, RoBERTa, XLM-R, CamemBERT, DistilBERT and ELECTRA are one computation under different names; the tables
below and the fields that ``architecture`` reads are the whole difference. Weights are read from
safetensors only: a pickle is never opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.architecture import whole_number
from fastflow.errors import FastflowError
from fastflow.kernels.reference import EncoderShape

Arrays = dict[str, NDArray[Any]]

WEIGHT_INDEX = "model.safetensors.index.json"  # of a sharded checkpoint

_BERT_LAYER = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "out": "attention.output.dense", "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip
_DISTILBERT_LAYER = {
    "q": "attention.q_lin", "k": "attention.k_lin", "v": "attention.v_lin", "out": "attention.out_lin",
    "norm1": "sa_layer_norm", "up": "ffn.lin1", "down": "ffn.lin2", "norm2": "output_layer_norm",
}  # fmt: skip


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that hold the weights, sharded or not."""
    index = directory / WEIGHT_INDEX
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            return [directory / name for name in sorted(names)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FastflowError(f"{index} is damaged: it maps no tensors to files") from error
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    hint = ""
    if (directory / "pytorch_model.bin").is_file():
        hint = "; convert pytorch_model.bin with AutoModel.from_pretrained(DIR).save_pretrained(DIR)"
    raise FastflowError(f"{directory} has no model.safetensors{hint}")


def has_pooler(directory: Path) -> bool:
    """Whether the weights hold BERT's pooler; without it transformers would invent a random one."""
    from safetensors import SafetensorError, safe_open

    for path in weight_files(directory):
        try:
            with safe_open(str(path), "numpy") as handle:
                if any(name.endswith("pooler.dense.weight") for name in handle.keys()):  # noqa: SIM118 (not a dict)
                    return True
        except (OSError, SafetensorError) as error:
            raise FastflowError(f"{path} is damaged or not safetensors: {error}") from error
    return False


def read_tensors(path: Path) -> Arrays:
    """Every tensor of a safetensors file; bfloat16, which NumPy lacks, is widened to float32."""
    import safetensors

    try:
        entries = safetensors.deserialize(path.read_bytes())
    except Exception as error:  # SafetensorError is raised for every malformed file
        raise FastflowError(f"{path} is damaged or not safetensors: {error}") from error
    return {name: _tensor(entry, path, name) for name, entry in entries}


_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "U8": np.uint8}


def _tensor(entry: dict[str, Any], path: Path, name: str) -> NDArray[Any]:
    if entry["dtype"] == "BF16":
        wide = np.frombuffer(entry["data"], np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(entry["shape"])
    if entry["dtype"] not in _DTYPES:
        raise FastflowError(f"{path}: tensor {name} has dtype {entry['dtype']}, which is not supported")
    return np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])


def load_weights(directory: Path, config: dict[str, Any], shape: EncoderShape, dtype: Any) -> Arrays:
    """The canonical arrays that ``kernels.reference`` names, in ``dtype``; the word table keeps its stored dtype.

    Raises a FastflowError that names the file and tensor for one that is missing, misshapen or not finite.
    """
    raw: Arrays = {}
    for path in weight_files(directory):
        raw |= read_tensors(path)
    source = _Source(directory, raw, config["model_type"])
    out = _embeddings(source, shape, config)
    layer_names = _DISTILBERT_LAYER if config["model_type"] == "distilbert" else _BERT_LAYER
    stem = "transformer.layer" if config["model_type"] == "distilbert" else "encoder.layer"
    for i in range(shape.layers):
        out |= _layer(source, f"{stem}.{i}.", f"layer.{i}.", layer_names, shape)
    if source.has("pooler.dense.weight"):
        out["pooler.weight"] = source("pooler.dense.weight", shape.hidden, shape.hidden)
        out["pooler.bias"] = source("pooler.dense.bias", shape.hidden)
    return {name: a if name == "word" else np.ascontiguousarray(a, dtype) for name, a in out.items()}


class _Source:
    """Raw tensors under any of the prefixes in use, each checked as it is taken."""

    def __init__(self, directory: Path, raw: Arrays, family: str) -> None:
        prefixes = ("", f"{family.removeprefix('xlm-')}.", "bert.", "roberta.", "model.")
        marker = "embeddings.word_embeddings.weight"
        self._prefix = next((p for p in prefixes if p + marker in raw), "")
        self._raw, self.directory = raw, directory

    def has(self, name: str) -> bool:
        return self._prefix + name in self._raw

    def __call__(self, name: str, *shape: int) -> NDArray[Any]:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        array = self._raw.get(self._prefix + name, self._raw.get(self._prefix + old))
        if array is None:
            raise FastflowError(f"{self.directory}: the weights lack tensor {self._prefix}{name}")
        if array.shape != shape:
            raise FastflowError(f"{self.directory}: tensor {name} has shape {array.shape}, config.json wants {shape}")
        if not np.isfinite(array).all():
            raise FastflowError(f"{self.directory}: tensor {name} holds NaN or infinity")
        return array


def _embeddings(source: _Source, shape: EncoderShape, config: dict[str, Any]) -> Arrays:
    family, width = config["model_type"], shape.hidden
    if family == "electra":
        given = {"embedding_size": 128, **config}  # transformers' default
        width = whole_number(given, "embedding_size", source.directory)
    stem = "embeddings."
    out = {
        "word": source(f"{stem}word_embeddings.weight", whole_number(config, "vocab_size", source.directory), width),
        "position": source(f"{stem}position_embeddings.weight", shape.positions, width),
        "segment": np.zeros(width, np.float32),
        "embed_norm.scale": source(f"{stem}LayerNorm.weight", width),
        "embed_norm.bias": source(f"{stem}LayerNorm.bias", width),
    }
    if family != "distilbert":
        types = whole_number(config, "type_vocab_size", source.directory)
        out["segment"] = source(f"{stem}token_type_embeddings.weight", types, width)[0]
    if width != shape.hidden:
        out["projection.weight"] = source("embeddings_project.weight", shape.hidden, width)
        out["projection.bias"] = source("embeddings_project.bias", shape.hidden)
    return out


def _layer(source: _Source, stem: str, prefix: str, names: dict[str, str], shape: EncoderShape) -> Arrays:
    hidden, wide = shape.hidden, shape.intermediate
    sizes = {"out": (hidden, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    parts = [names[part] for part in "qkv"]
    out = {
        f"{prefix}qkv.weight": np.concatenate([source(f"{stem}{p}.weight", hidden, hidden) for p in parts]),
        f"{prefix}qkv.bias": np.concatenate([source(f"{stem}{p}.bias", hidden) for p in parts]),
    }
    for part, size in sizes.items():
        out[f"{prefix}{part}.weight"] = source(f"{stem}{names[part]}.weight", *size)
        out[f"{prefix}{part}.bias"] = source(f"{stem}{names[part]}.bias", size[0])
    for part in ("norm1", "norm2"):
        out[f"{prefix}{part}.scale"] = source(f"{stem}{names[part]}.weight", hidden)
        out[f"{prefix}{part}.bias"] = source(f"{stem}{names[part]}.bias", hidden)
    return out
