"""The checkpoint tensors and shapes of each canonical weight, by architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError
from fastflow.kernels.encoder.shape import BUCKETS, EncoderShape
from fastflow.values import whole_number

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

Item = tuple[str, tuple[tuple[str, ...], tuple[int, ...]]]  # canonical name, names of its parts, shape of each


def word_tensor(family: str) -> str:
    """Return the name of the word table without prefix."""
    return "embeddings.tok_embeddings.weight" if family == "modernbert" else "embeddings.word_embeddings.weight"


def layout(has: Callable[[str], bool], config: dict[str, Any], shape: EncoderShape, where: Path) -> Iterator[Item]:
    """Yield all weights; lazily, since config.json may name any number of layers.

    ``has`` tells whether the checkpoint holds a tensor. Raises a FastflowError for one that config.json denies.
    """
    if config["model_type"] == "modernbert":
        yield from _modernbert(has, config, shape, where)
    else:
        yield from _post_norm(has, config, shape, where)


def _post_norm(has: Callable[[str], bool], config: dict[str, Any], shape: EncoderShape, where: Path) -> Iterator[Item]:
    family = config["model_type"]
    yield from _embeddings(config, shape, where)
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
        width = whole_number({"embedding_size": 128, **config}, "embedding_size", where)  # transformers' default
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


def _modernbert(has: Callable[[str], bool], config: dict[str, Any], shape: EncoderShape, where: Path) -> Iterator[Item]:
    from fastflow.model.encoder.modernbert import biases

    hidden, wide, given = shape.hidden, shape.intermediate, biases(config, where)

    def denied(name: str, why: str) -> None:
        if has(name):  # transformers would silently ignore it
            raise FastflowError(f"{where}: the weights hold tensor {name}, and {why}")

    def linear(name: str, stem: str, rows: int, columns: int, field: str) -> Iterator[Item]:
        if not given[field]:
            denied(f"{stem}.bias", f"config.json, field {field}_bias, has none")
        yield from _linear(name, stem, rows, columns, given[field])

    def norm(name: str, stem: str) -> Iterator[Item]:
        if not given["norm"]:
            denied(f"{stem}.bias", "config.json, field norm_bias, has none")
        yield from _norm(name, stem, hidden, given["norm"])

    yield "word", ((word_tensor("modernbert"),), (whole_number(config, "vocab_size", where), hidden))
    yield from norm("embed_norm", "embeddings.norm")
    denied("layers.0.attn_norm.weight", "the first layer of a ModernBERT has no such LayerNorm")
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
