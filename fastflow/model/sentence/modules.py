"""Settings of each module of Sentence Transformers, in older and newer names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import MODES
from fastflow.model.hashing import is_file
from fastflow.values import is_whole, read_object, short

FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
TRANSFORMER_FILES = tuple(f"sentence_{family}_config.json" for family in FAMILIES)
WIDTHS = ("embedding_dimension", "word_embedding_dimension")
LEGACY_MODES = {mode.field: name for name, mode in MODES.items()}
ACTIVATIONS = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid", "SiLU": "silu",
    "ELU": "elu", "LeakyReLU": "leaky_relu", "Softplus": "softplus", "Softsign": "softsign", "ReLU6": "relu6",
    "Hardtanh": "hardtanh", "Mish": "mish",
}  # fmt: skip
ACTIVATION = re.compile(rf"torch\.nn\.(?:modules\.\w+\.)?({'|'.join(ACTIVATIONS)})")
# Transformer settings that must have one value or be empty
TRANSFORMER_FIXED: dict[str, Any] = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
TRANSFORMER_EMPTY = (
    *("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"),
    *("processing_kwargs", "query_length", "document_length", "query_expansion", "tokenizer_name_or_path"),
)


@dataclass(frozen=True)
class TransformerModule:
    """The encoder's folder, token limit (None: the encoder's), and whether texts are lowercased."""

    directory: Path
    max_seq_length: int | None
    do_lower_case: bool


@dataclass(frozen=True)
class PoolingModule:
    """Pooling of states (N, D) by each mode, concatenated: (B, D * modes).

    ``include_prompt`` false excludes the prompt's tokens.
    """

    modes: tuple[str, ...]
    include_prompt: bool

    def __str__(self) -> str:
        return f"Pooling ({', '.join(self.modes)})"


class StaticModule(PoolingModule):
    """The mean of a token table's rows, prompts included."""

    def __str__(self) -> str:
        return "StaticEmbedding"


@dataclass(frozen=True)
class DenseModule:
    """y = activation(W x + b); ``residual`` adds x, or R x if the widths differ."""

    directory: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool

    def __str__(self) -> str:
        return f"Dense ({self.in_features} to {self.out_features}, {self.activation})"


@dataclass(frozen=True)
class LayerNormModule:
    """LayerNorm of ``width`` numbers."""

    directory: Path
    width: int

    def __str__(self) -> str:
        return "LayerNorm"


@dataclass(frozen=True)
class NormalizeModule:
    """Division by the L2 norm."""

    def __str__(self) -> str:
        return "Normalize"


@dataclass(frozen=True)
class WordWeightsModule:
    """Token weights by id; a weighted mean divides by their sum."""

    directory: Path

    def __str__(self) -> str:
        return "WordWeights"


@dataclass(frozen=True)
class LayersModule:
    """The weighted mean of the layers ``start`` to ``last``."""

    directory: Path
    start: int
    last: int

    def __str__(self) -> str:
        return f"WeightedLayerPooling (layers {self.start} to {self.last})"


def read_transformer(folder: Path, fixed: Mapping[str, Any] = TRANSFORMER_FIXED) -> TransformerModule:
    """Read a Transformer; settings of other modalities, and other values than ``fixed``, are refused."""
    if not is_file(folder / "config.json"):
        raise FastflowError(
            f"{folder} is not an encoder: it has no config.json, and modules.json names it the Transformer"
        )
    where = next((folder / name for name in TRANSFORMER_FILES if is_file(folder / name)), None)
    found = {} if where is None else read_object(where)
    place = str(where)
    check_fields(
        found, ("max_seq_length", "do_lower_case", "unpad_inputs", *TRANSFORMER_FIXED, *TRANSFORMER_EMPTY), place
    )
    for name, value in fixed.items():
        if found.get(name, value) != value:
            raise FastflowError(f"{place}, field {name}: only {short(value)} is supported, not {short(found[name])}")
    if odd := [name for name in TRANSFORMER_EMPTY if found.get(name)]:
        raise FastflowError(f"{place}, field {odd[0]}: is not supported; it must be empty")
    length = found.get("max_seq_length")
    if length is None:
        length = _model_max_length(folder)
    elif not is_whole(length, 1):
        raise FastflowError(f"{place}, field max_seq_length: must be a whole number or null, not {short(length)}")
    return TransformerModule(folder, length, flag(found, "do_lower_case", False, place))


def _model_max_length(folder: Path) -> int | None:
    config = folder / "tokenizer_config.json"
    fields = read_object(config) if is_file(config) else {}
    found = fields.get("model_max_length", fields.get("max_len"))
    return found if is_whole(found, 1) else None


def _check_width(found: dict[str, Any], hidden: int, place: str) -> None:
    for name in WIDTHS:
        if found.get(name, hidden) != hidden:
            raise FastflowError(f"{place}, field {name}: must be {hidden}, the encoder's, not {short(found[name])}")


def read_pooling(folder: Path, hidden: int) -> tuple[PoolingModule, int]:
    """Read the pooling of states of width ``hidden``; returns it and its output width."""
    found, place = module_config(folder, "Pooling")
    check_fields(found, (*WIDTHS, "pooling_mode", "include_prompt", *LEGACY_MODES), place)
    _check_width(found, hidden, place)
    legacy = tuple(mode for name, mode in LEGACY_MODES.items() if flag(found, name, False, place))
    given = found.get("pooling_mode", list(legacy))
    modes = tuple(given) if isinstance(given, list) else (given,)
    if odd := [mode for mode in modes if mode not in LEGACY_MODES.values()]:
        raise FastflowError(f"{place}, field pooling_mode: {short(odd[0])} is unknown; known are {', '.join(MODES)}")
    if not modes:
        raise FastflowError(f"{place}, field pooling_mode: no pooling mode is chosen")
    if "pooling_mode" in found and legacy and set(legacy) != set(modes):
        raise FastflowError(f"{place}: pooling_mode says {', '.join(modes)}, and its older fields {', '.join(legacy)}")
    return PoolingModule(modes, flag(found, "include_prompt", True, place)), hidden * len(modes)


def read_dense(folder: Path, width: int) -> DenseModule:
    """Read a Dense module with ``width`` inputs."""
    found, place = module_config(folder, "Dense")
    names = ("module_input_name", "module_output_name")
    check_fields(found, ("in_features", "out_features", "bias", "activation_function", "use_residual", *names), place)
    if found.get("in_features") != width or not is_whole(width, 1):
        raise FastflowError(f"{place}, field in_features: must be {width}, not {short(found.get('in_features'))}")
    if not is_whole(out := found.get("out_features"), 1):
        raise FastflowError(f"{place}, field out_features: missing or not a whole number above 0: {short(out)}")
    _check_whole_embedding(found, names, place)
    given = found.get("activation_function", "torch.nn.modules.activation.Tanh")
    match = ACTIVATION.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        known = ", ".join(ACTIVATIONS)
        raise FastflowError(
            f"{place}, field activation_function: {short(given)} is unknown; known are {known} of torch.nn"
        )
    bias, residual = flag(found, "bias", True, place), flag(found, "use_residual", False, place)
    return DenseModule(folder, width, found["out_features"], bias, ACTIVATIONS[match[1]], residual)


def read_layer_norm(folder: Path, width: int) -> LayerNormModule:
    """Read a LayerNorm of ``width`` numbers."""
    found, place = module_config(folder, "LayerNorm")
    check_fields(found, ("dimension",), place)
    if found.get("dimension") != width:
        raise FastflowError(f"{place}, field dimension: must be {width}, not {short(found.get('dimension'))}")
    return LayerNormModule(folder, width)


def read_normalize(folder: Path) -> None:
    """Check a newer Normalize; an older Normalize has no settings."""
    if is_file(folder / "config.json"):
        found, place = module_config(folder, "Normalize")
        names = ("module_input_name", "module_output_name")
        check_fields(found, names, place)
        _check_whole_embedding(found, names, place)


def _check_whole_embedding(found: dict[str, Any], names: tuple[str, ...], place: str) -> None:
    for name in names:
        if found.get(name) not in (None, "sentence_embedding"):
            raise FastflowError(f"{place}, field {name}: must be 'sentence_embedding', not {short(found[name])}")


def module_config(folder: Path, kind: str) -> tuple[dict[str, Any], str]:
    """Read a module's config.json; return it and its path for messages."""
    path = folder / "config.json"
    if not is_file(path):
        raise FastflowError(f"{path} is missing: modules.json names its folder as a {kind}; copy the whole directory")
    return read_object(path), str(path)


def check_fields(found: dict[str, Any], known: tuple[str, ...], place: str) -> None:
    """Raise for a field that is not ``known``."""
    if odd := [name for name in found if name not in known]:
        raise FastflowError(f"{place}, field {short(odd[0])}: is unknown to this version of fastflow")


def flag(found: dict[str, Any], name: str, default: bool, place: str) -> bool:
    """Return a boolean field."""
    value = found.get(name, default)
    if not isinstance(value, bool):
        raise FastflowError(f"{place}, field {name}: must be true or false, not {short(value)}")
    return value


def read_layers(folder: Path, config: dict[str, Any], encoder: Path, hidden: int, depth: int) -> LayersModule:
    """Read a WeightedLayerPooling for ``depth`` layers of width ``hidden``."""
    found, place = module_config(folder, "WeightedLayerPooling")
    check_fields(found, (*WIDTHS, "layer_start", "num_hidden_layers"), place)
    _check_width(found, hidden, place)
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
