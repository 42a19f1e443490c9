"""An encoder's weights by the same names for every architecture, from safetensors only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import BUCKETS, EncoderShape
from fastflow.kernels.stored import LARGEST, usable, widen
from fastflow.model.hashing import combine_hashes
from fastflow.model.tensors import Arrays, MappedTensors
from fastflow.model.tokenizer.settings import FILES as SETTINGS_FILES
from fastflow.values import flag, read_object, short, whole_number

BAD = f"holds NaN or infinity, or a magnitude above {LARGEST:g}; no encoder can be computed with that"
_BERT_LAYER = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "out": "attention.output.dense", "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip
_DISTILBERT_LAYER = {
    "q": "attention.q_lin", "k": "attention.k_lin", "v": "attention.v_lin", "out": "attention.out_lin",
    "norm1": "sa_layer_norm", "up": "ffn.lin1", "down": "ffn.lin2", "norm2": "output_layer_norm",
}  # fmt: skip
_MPNET_LAYER = {
    "q": "attention.attn.q", "k": "attention.attn.k", "v": "attention.attn.v",
    "out": "attention.attn.o", "norm1": "attention.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip
_LAYERS = {"distilbert": _DISTILBERT_LAYER, "mpnet": _MPNET_LAYER}
_WITHOUT_SEGMENTS = ("distilbert", "mpnet")

Item = tuple[str, tuple[tuple[str, ...], tuple[int, ...]]]

WEIGHT_INDEX = "model.safetensors.index.json"
SCALES = "embeddings.word_embeddings.scales"  # (vocabulary,) float32: the word rows are int8, times these


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= 255 and Path(name).name == name and name.isprintable()


def weight_files(directory: Path) -> list[Path]:
    """List the safetensors files of the weights, sharded or not."""
    if (adapter := directory / "adapter_config.json").is_file():
        raise FastflowError(f"{adapter}: adapters are not supported; save the model after merge_and_unload() of peft")
    index = directory / WEIGHT_INDEX
    if index.is_file():
        mapped = read_object(index).get("weight_map")
        if not isinstance(mapped, dict) or not all(isinstance(name, str) for name in mapped.values()):
            raise FastflowError(f"{index} is damaged: it maps no tensors to files")
        names = sorted(set(mapped.values()))
        if odd := [name for name in names if not _is_plain(name)]:
            raise FastflowError(f"{index}, field weight_map: {short(odd[0])} is not the name of a file beside it")
        return [directory / name for name in names]
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    hint = ""
    if (directory / "pytorch_model.bin").is_file():
        hint = "; convert pytorch_model.bin with AutoModel.from_pretrained(DIR).save_pretrained(DIR)"
    raise FastflowError(f"{directory} has no model.safetensors{hint}")


def encoder_files(directory: Path) -> list[Path]:
    """List config, weights and tokenizer of an encoder, in a fixed order."""
    names = ("config.json", "tokenizer.json", *SETTINGS_FILES, "vocab.txt", WEIGHT_INDEX)
    return [directory / name for name in names if (directory / name).is_file()] + weight_files(directory)


def encoder_hash(directory: Path) -> str:
    """Return the sha256 over names and hashes of ``encoder_files``."""
    return combine_hashes(encoder_files(directory))


def has_pooler(directory: Path) -> bool:
    """Return whether the weights hold BERT's pooler, which transformers would fill at random."""
    return any(
        n.endswith("pooler.dense.weight") for path in weight_files(directory) for n in MappedTensors(path).arrays
    )


class MappedWeights:
    """The weights of ``load_weights`` in mapped files, as stored.

    ``stored``: name -> array, or arrays of query, key and value. The reader checks for NaN and infinity. ``pairs``:
    store the embedding of segment 1 too, as ``second``.
    """

    def __init__(self, directory: Path, config: dict[str, Any], shape: EncoderShape, pairs: bool = False) -> None:
        self.directory = directory
        self._files = [MappedTensors(path) for path in weight_files(directory)]
        arrays = {name: array for file in self._files for name, array in file.arrays.items()}
        source = _Source(directory, arrays, config["model_type"])
        self.stored: dict[str, NDArray[Any] | tuple[NDArray[Any], ...]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for name, (tensors, size) in layout(source.has, config, shape, directory):
            parts = tuple(source(tensor, *size) for tensor in tensors)
            self._names[name] = tensors
            self.stored[name] = parts if len(parts) > 1 else parts[0]
        table = self.stored.get("segment")
        if isinstance(table, np.ndarray) and not usable(widen(table)):
            raise self.not_finite("segment", 0)
        if "position" in self.stored:
            width = np.shape(self.stored["word"])[1]
            self.stored["segment"] = table[0] if isinstance(table, np.ndarray) else np.zeros(width, np.float32)
            if pairs and isinstance(table, np.ndarray):
                self.stored["second"] = table[1]

    def columns(self, name: str) -> int:
        found = self.stored.get(name)
        first = found[0] if isinstance(found, tuple) else found
        return 0 if first is None or first.ndim != 2 else first.shape[1]

    def release(self) -> None:
        for file in self._files:
            file.release()

    def not_finite(self, name: str, part: int) -> FastflowError:
        names = self._names[name]
        return FastflowError(f"{self.directory}: tensor {names[part if len(names) > 1 else 0]} {BAD}")


def load_weights(
    directory: Path, config: dict[str, Any], shape: EncoderShape, dtype: Any, pairs: bool = False
) -> Arrays:
    """Load the arrays that ``kernels.encoder.reference`` lists, in ``dtype``.

    The word table keeps its stored dtype; int8 rows become float32.
    """
    mapped, out = MappedWeights(directory, config, shape, pairs), dict[str, NDArray[Any]]()
    for name, stored in mapped.stored.items():
        parts = [widen(part) for part in (stored if isinstance(stored, tuple) else (stored,))]
        for i, part in enumerate(parts):
            if not usable(part):
                raise mapped.not_finite(name, i)
        out[name] = np.array(parts[0]) if name == "word" else np.concatenate(parts, dtype=dtype, casting="same_kind")
        mapped.release()
    if (scales := out.pop("word.scales", None)) is not None:
        out["word"] = out["word"] * scales[:, None].astype(np.float32)
    return out


class _Source:
    def __init__(self, directory: Path, raw: Arrays, family: str) -> None:
        prefixes = ("", f"{family.removeprefix('xlm-')}.", "bert.", "roberta.", "model.")
        self._prefix = next((p for p in prefixes if p + word_tensor(family) in raw), "")
        self._raw, self.directory = raw, directory

    def has(self, name: str) -> bool:
        return self._prefix + name in self._raw

    def __call__(self, name: str, *shape: int) -> NDArray[Any]:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        array = self._raw.get(self._prefix + name, self._raw.get(self._prefix + old))
        if array is None:
            raise FastflowError(f"{self.directory}: the weights lack tensor {self._prefix}{name}")
        is_scaled = name == word_tensor("") and array.dtype == np.int8 and self.has(SCALES)
        if array.dtype.kind not in "fV" and not is_scaled:
            raise FastflowError(f"{self.directory}: tensor {name} has dtype {array.dtype}, which no weight has")
        if array.shape != shape:
            raise FastflowError(f"{self.directory}: tensor {name} has shape {array.shape}, config.json needs {shape}")
        return array


def word_tensor(family: str) -> str:
    """Return the name of the word table's tensor without prefix."""
    return "embeddings.tok_embeddings.weight" if family == "modernbert" else "embeddings.word_embeddings.weight"


def widen_words(arrays: Arrays) -> Arrays:
    """Return a file's ``arrays`` with float32 in place of int8 word rows and their scales."""
    scales, rows = arrays.get(SCALES), word_tensor("")
    if scales is None:
        return arrays
    words = {rows: arrays[rows] * scales[:, None].astype(np.float32)}
    return {name: array for name, array in arrays.items() if name != SCALES} | words


def layout(has: Callable[[str], bool], config: dict[str, Any], shape: EncoderShape, where: Path) -> Iterator[Item]:
    """Yield (name, (tensors, shape)) lazily: config.json may claim any number of layers."""
    if config["model_type"] == "modernbert":
        yield from _modernbert(has, config, shape, where)
    else:
        yield from _post_norm(has, config, shape, where)


def _post_norm(has: Callable[[str], bool], config: dict[str, Any], shape: EncoderShape, where: Path) -> Iterator[Item]:
    family = config["model_type"]
    yield from _embeddings(config, shape, where)
    if has(SCALES):
        yield "word.scales", ((SCALES,), (whole_number(config, "vocab_size", where),))
    if family == "mpnet":
        yield "relative", (("encoder.relative_attention_bias.weight",), (BUCKETS, shape.heads))
    for i in range(shape.layers):
        stem = f"transformer.layer.{i}." if family == "distilbert" else f"encoder.layer.{i}."
        yield from _layer(stem, f"layer.{i}.", _LAYERS.get(family, _BERT_LAYER), shape)
    if has("pooler.dense.weight"):
        yield from _linear("pooler", "pooler.dense", shape.hidden, shape.hidden)


def _embeddings(config: dict[str, Any], shape: EncoderShape, where: Path) -> Iterator[Item]:
    family, width = config["model_type"], shape.hidden
    if family == "electra":
        width = whole_number({"embedding_size": 128, **config}, "embedding_size", where)
    yield "word", ((word_tensor(family),), (whole_number(config, "vocab_size", where), width))
    yield "position", (("embeddings.position_embeddings.weight",), (shape.positions, width))
    yield from _norm("embed_norm", "embeddings.LayerNorm", width)
    if family not in _WITHOUT_SEGMENTS:
        types = whole_number(config, "type_vocab_size", where)
        yield "segment", (("embeddings.token_type_embeddings.weight",), (types, width))
    if width != shape.hidden:
        yield from _linear("projection", "embeddings_project", shape.hidden, width)


def _layer(stem: str, prefix: str, names: dict[str, str], shape: EncoderShape) -> Iterator[Item]:
    hidden, wide = shape.hidden, shape.intermediate
    parts = [names[part] for part in "qkv"]
    yield f"{prefix}qkv.weight", (tuple(f"{stem}{part}.weight" for part in parts), (hidden, hidden))
    yield f"{prefix}qkv.bias", (tuple(f"{stem}{part}.bias" for part in parts), (hidden,))
    for part, rows, columns in (("out", hidden, hidden), ("up", wide, hidden), ("down", hidden, wide)):
        yield from _linear(f"{prefix}{part}", f"{stem}{names[part]}", rows, columns)
    for part in ("norm1", "norm2"):
        yield from _norm(f"{prefix}{part}", f"{stem}{names[part]}", hidden)


def biases(config: dict[str, Any], where: Path) -> dict[str, bool]:
    """Return which parts of a ModernBERT have biases; by default none."""
    return {part: flag(config, f"{part}_bias", where) for part in ("attention", "mlp", "norm")}


def _modernbert(has: Callable[[str], bool], config: dict[str, Any], shape: EncoderShape, where: Path) -> Iterator[Item]:
    hidden, wide, given = shape.hidden, shape.intermediate, biases(config, where)

    def refuse_denied(name: str, why: str) -> None:
        if has(name):
            raise FastflowError(f"{where}: the weights hold tensor {name}, and {why}")

    def linear(name: str, stem: str, rows: int, columns: int, field: str) -> Iterator[Item]:
        if not given[field]:
            refuse_denied(f"{stem}.bias", f"config.json, field {field}_bias, has none")
        yield from _linear(name, stem, rows, columns, given[field])

    def norm(name: str, stem: str) -> Iterator[Item]:
        if not given["norm"]:
            refuse_denied(f"{stem}.bias", "config.json, field norm_bias, has none")
        yield from _norm(name, stem, hidden, given["norm"])

    yield "word", ((word_tensor("modernbert"),), (whole_number(config, "vocab_size", where), hidden))
    yield from norm("embed_norm", "embeddings.norm")
    refuse_denied("layers.0.attn_norm.weight", "the first layer of a ModernBERT has no such LayerNorm")
    for i in range(shape.layers):
        stem, prefix = f"layers.{i}.", f"layer.{i}."
        if i:
            yield from norm(f"{prefix}norm1", f"{stem}attn_norm")
        yield from linear(f"{prefix}qkv", f"{stem}attn.Wqkv", 3 * hidden, hidden, "attention")
        yield from linear(f"{prefix}out", f"{stem}attn.Wo", hidden, hidden, "attention")
        yield from norm(f"{prefix}norm2", f"{stem}mlp_norm")
        yield from linear(f"{prefix}up", f"{stem}mlp.Wi", 2 * wide, hidden, "mlp")
        yield from linear(f"{prefix}down", f"{stem}mlp.Wo", hidden, wide, "mlp")
    yield from norm("final_norm", "final_norm")


def _linear(name: str, stem: str, rows: int, columns: int, bias: bool = True) -> Iterator[Item]:
    yield f"{name}.weight", ((f"{stem}.weight",), (rows, columns))
    if bias:
        yield f"{name}.bias", ((f"{stem}.bias",), (rows,))


def _norm(name: str, stem: str, width: int, bias: bool = True) -> Iterator[Item]:
    yield f"{name}.scale", ((f"{stem}.weight",), (width,))
    if bias:
        yield f"{name}.bias", ((f"{stem}.bias",), (width,))
