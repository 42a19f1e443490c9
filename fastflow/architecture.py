"""config.json of an encoder directory -> what is computed (EncoderShape), or at least its size (EncoderSize)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError, UnsupportedArchitecture
from fastflow.kernels.reference import EncoderShape

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
ROBERTA = ("roberta", "xlm-roberta", "camembert")
FAMILIES = ("bert", "electra", "distilbert", *ROBERTA)
# position 0 of these, which only PyTorch runs, is row pad + 1 of the table, as in RoBERTa
OFFSET_POSITIONS = (
    "mpnet",
    "longformer",
    "data2vec-text",
    "ibert",
    "roberta-prelayernorm",
    "luke",
    "xmod",
    "xlm-roberta-xl",
)


@dataclass(frozen=True)
class EncoderSize:
    """What every backend must know of an encoder: transformer layers, width D, and the longest text it can take."""

    layers: int
    hidden: int
    max_tokens: int  # special tokens included


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
    """The EncoderShape of ``config``; raises UnsupportedArchitecture where the equations do not cover it."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedArchitecture(
            f"{where}: architecture {family!r} is not supported; supported are {', '.join(FAMILIES)}"
        )
    distil = family == "distilbert"
    activation = config.get("activation" if distil else "hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise UnsupportedArchitecture(
            f"{where}: activation {activation!r} is not supported; known are {', '.join(ACTIVATIONS)}"
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        # no step down: transformers 5 ignores this field and would give wrong vectors
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


def encoder_size(config: dict[str, Any], where: Path) -> EncoderSize:
    """The size of any encoder that transformers knows, native here or not; raises when config.json does not say it."""
    try:
        shape = encoder_shape(config, where)
    except UnsupportedArchitecture:
        start = 0
        if config.get("model_type") in OFFSET_POSITIONS:
            start = whole_number({"pad_token_id": 1, **config}, "pad_token_id", where, least=0) + 1
        return EncoderSize(
            layers=whole_number(config, "num_hidden_layers", where),
            hidden=whole_number(config, "hidden_size", where),
            max_tokens=whole_number(config, "max_position_embeddings", where) - start,
        )
    return EncoderSize(shape.layers, shape.hidden, max_tokens(shape))
