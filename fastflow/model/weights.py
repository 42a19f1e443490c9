"""The weights of an encoder of the BERT family -> one canonical set of arrays.

BERT, MiniLM, RoBERTa, XLM-R, CamemBERT, DistilBERT and ELECTRA are one computation under different names; the tables
below and the fields that ``architecture`` reads are the whole difference. Weights are read from
safetensors only: a pickle is never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder.reference import EncoderShape
from fastflow.kernels.panels import LARGEST, usable, widen
from fastflow.model.architecture import whole_number
from fastflow.model.reading import read_object, short
from fastflow.model.tensors import Arrays, MappedTensors

BAD = f"holds NaN or infinity, or a magnitude above {LARGEST:g}; no encoder can be computed with that"
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
        mapped = read_object(index).get("weight_map")
        if not isinstance(mapped, dict) or not all(isinstance(name, str) for name in mapped.values()):
            raise FastflowError(f"{index} is damaged: it maps no tensors to files")
        names = sorted(set(mapped.values()))
        if odd := [name for name in names if not name or Path(name).name != name or len(name) > 255]:
            raise FastflowError(f"{index}, field weight_map: {short(odd[0])} is not the name of a file beside it")
        return [directory / name for name in names]
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    hint = ""
    if (directory / "pytorch_model.bin").is_file():
        hint = "; convert pytorch_model.bin with AutoModel.from_pretrained(DIR).save_pretrained(DIR)"
    raise FastflowError(f"{directory} has no model.safetensors{hint}")


def has_pooler(directory: Path) -> bool:
    """Whether the weights hold BERT's pooler; without it transformers would invent a random one."""
    return any(
        n.endswith("pooler.dense.weight") for path in weight_files(directory) for n in MappedTensors(path).arrays
    )


class MappedWeights:
    """The canonical weights of an encoder as they are stored: those of ``load_weights``, not read yet.

    ``stored`` is a ``cpu_layout.Stored``: views of the mapped files, ``qkv`` in three parts. The reader checks that
    they are finite and not above LARGEST, and raises ``not_finite`` where they are not.
    Raises a FastflowError that names the file and tensor for one that is missing or misshapen.
    """

    def __init__(self, directory: Path, config: dict[str, Any], shape: EncoderShape) -> None:
        self.directory = directory
        self._files = [MappedTensors(path) for path in weight_files(directory)]
        arrays = {name: array for file in self._files for name, array in file.arrays.items()}
        source = _Source(directory, arrays, config["model_type"])
        self.stored: dict[str, NDArray[Any] | tuple[NDArray[Any], ...]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for name, (tensors, size) in _layout(source, config, shape):  # ends at the first tensor that is missing
            parts = tuple(source(tensor, *size) for tensor in tensors)
            self._names[name] = tensors
            self.stored[name] = parts if len(parts) > 1 else parts[0]
        table = self.stored.get("segment")  # of which only the first row is ever added
        if isinstance(table, np.ndarray) and not usable(widen(table)):
            raise self.not_finite("segment", 0)
        width = np.shape(self.stored["word"])[1]
        self.stored["segment"] = table[0] if isinstance(table, np.ndarray) else np.zeros(width, np.float32)

    def release(self) -> None:
        """Release the memory of the pages that were read so far."""
        for file in self._files:
            file.release()

    def not_finite(self, name: str, part: int) -> FastflowError:
        """The error for part ``part`` of the canonical weight ``name``."""
        return FastflowError(f"{self.directory}: tensor {self._names[name][part]} {BAD}")


def load_weights(directory: Path, config: dict[str, Any], shape: EncoderShape, dtype: Any) -> Arrays:
    """The canonical arrays that ``kernels.encoder.reference`` names, in ``dtype``, but the word table as stored.

    Raises a FastflowError that names the file and tensor for one that is missing, misshapen or not finite.
    """
    mapped, out = MappedWeights(directory, config, shape), {}
    for name, stored in mapped.stored.items():
        parts = [widen(part) for part in (stored if isinstance(stored, tuple) else (stored,))]
        for i, part in enumerate(parts):
            if not usable(part):
                raise mapped.not_finite(name, i)
        out[name] = np.array(parts[0]) if name == "word" else np.concatenate(parts, dtype=dtype, casting="same_kind")
        mapped.release()
    return out


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
        if array.dtype.kind not in "fV":  # V: bfloat16
            raise FastflowError(f"{self.directory}: tensor {name} has dtype {array.dtype}, which no weight has")
        if array.shape != shape:
            raise FastflowError(f"{self.directory}: tensor {name} has shape {array.shape}, config.json needs {shape}")
        return array


Layout = dict[str, tuple[tuple[str, ...], tuple[int, ...]]]  # canonical name -> names of its parts, shape of each


def _layout(source: _Source, config: dict[str, Any], shape: EncoderShape) -> Iterator[tuple[str, Any]]:
    """The items of a Layout, all that is read; made one after the other, for config.json may name any number."""
    distil = config["model_type"] == "distilbert"
    yield from _embeddings(source, config, shape).items()
    for i in range(shape.layers):
        stem = f"transformer.layer.{i}." if distil else f"encoder.layer.{i}."
        yield from _layer(stem, f"layer.{i}.", _DISTILBERT_LAYER if distil else _BERT_LAYER, shape).items()
    if source.has("pooler.dense.weight"):
        yield "pooler.weight", (("pooler.dense.weight",), (shape.hidden, shape.hidden))
        yield "pooler.bias", (("pooler.dense.bias",), (shape.hidden,))


def _embeddings(source: _Source, config: dict[str, Any], shape: EncoderShape) -> Layout:
    family, width, where = config["model_type"], shape.hidden, source.directory
    if family == "electra":
        width = whole_number({"embedding_size": 128, **config}, "embedding_size", where)  # transformers' default
    stem = "embeddings."
    out: Layout = {
        "word": ((f"{stem}word_embeddings.weight",), (whole_number(config, "vocab_size", where), width)),
        "position": ((f"{stem}position_embeddings.weight",), (shape.positions, width)),
        "embed_norm.scale": ((f"{stem}LayerNorm.weight",), (width,)),
        "embed_norm.bias": ((f"{stem}LayerNorm.bias",), (width,)),
    }
    if family != "distilbert":
        types = whole_number(config, "type_vocab_size", where)
        out["segment"] = ((f"{stem}token_type_embeddings.weight",), (types, width))
    if width != shape.hidden:
        out["projection.weight"] = (("embeddings_project.weight",), (shape.hidden, width))
        out["projection.bias"] = (("embeddings_project.bias",), (shape.hidden,))
    return out


def _layer(stem: str, prefix: str, names: dict[str, str], shape: EncoderShape) -> Layout:
    hidden, wide = shape.hidden, shape.intermediate
    parts = [names[part] for part in "qkv"]
    out: Layout = {
        f"{prefix}qkv.weight": (tuple(f"{stem}{part}.weight" for part in parts), (hidden, hidden)),
        f"{prefix}qkv.bias": (tuple(f"{stem}{part}.bias" for part in parts), (hidden,)),
    }
    for part, size in {"out": (hidden, hidden), "up": (wide, hidden), "down": (hidden, wide)}.items():
        out[f"{prefix}{part}.weight"] = ((f"{stem}{names[part]}.weight",), size)
        out[f"{prefix}{part}.bias"] = ((f"{stem}{names[part]}.bias",), size[:1])
    for part in ("norm1", "norm2"):
        out[f"{prefix}{part}.scale"] = ((f"{stem}{names[part]}.weight",), (hidden,))
        out[f"{prefix}{part}.bias"] = ((f"{stem}{names[part]}.bias",), (hidden,))
    return out
