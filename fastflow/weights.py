"""A Hugging Face encoder directory of the BERT family -> one canonical set of arrays and an EncoderShape.

BERT, MiniLM, RoBERTa, XLM-R, CamemBERT, DistilBERT and ELECTRA are one computation under different names; the tables
below are the whole difference. Weights are read from safetensors only: a pickle is never opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.reference import EncoderShape

Arrays = dict[str, NDArray[Any]]

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
ROBERTA = ("roberta", "xlm-roberta", "camembert")
FAMILIES = ("bert", "electra", "distilbert", *ROBERTA)
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


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of an encoder directory; raises when it is absent or not JSON."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FastflowError(f"{directory} is not an encoder: it has no config.json") from None
    except (ValueError, OSError) as error:
        raise FastflowError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise FastflowError(f"{path} does not hold a JSON object")
    return config


def whole_number(config: dict[str, Any], name: str, where: Path, least: int = 1) -> int:
    """The field ``name`` of an encoder's config as an int; raises naming the file ``where`` it is and the field."""
    try:
        value = int(config[name])
    except (KeyError, TypeError, ValueError) as error:
        raise FastflowError(f"{where / 'config.json'}, field {name}: missing or not a whole number") from error
    if value < least:
        raise FastflowError(f"{where / 'config.json'}, field {name}: must be at least {least}, not {value}")
    return value


def encoder_shape(config: dict[str, Any], where: Path) -> EncoderShape:
    """The EncoderShape that ``config`` describes; raises for an architecture or variant the equations do not cover."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise FastflowError(f"{where}: architecture {family!r} is not supported; supported are {', '.join(FAMILIES)}")
    distil = family == "distilbert"
    activation = config.get("activation" if distil else "hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise FastflowError(f"{where}: activation {activation!r} is not supported; known are {', '.join(ACTIVATIONS)}")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise FastflowError(f"{where}: only absolute position embeddings are supported")
    pad = whole_number({"pad_token_id": 1, **config}, "pad_token_id", where, least=0) if family in ROBERTA else None
    shape = EncoderShape(
        layers=whole_number(config, "n_layers" if distil else "num_hidden_layers", where),
        hidden=whole_number(config, "dim" if distil else "hidden_size", where),
        heads=whole_number(config, "n_heads" if distil else "num_attention_heads", where),
        intermediate=whole_number(config, "hidden_dim" if distil else "intermediate_size", where),
        eps=1e-12 if distil else float(config.get("layer_norm_eps", 1e-12)),
        activation=ACTIVATIONS[activation],
        positions=whole_number(config, "max_position_embeddings", where),
        position_start=0 if pad is None else pad + 1,
        pad_id=pad,
    )
    if shape.hidden % shape.heads:
        raise FastflowError(f"{where / 'config.json'}: {shape.heads} heads do not divide {shape.hidden} dimensions")
    return shape


def max_tokens(shape: EncoderShape) -> int:
    """The longest text, special tokens included, that the position table allows."""
    return shape.positions - shape.position_start


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
