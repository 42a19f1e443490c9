"""Read an encoder's config.json: the kernels' EncoderShape, or only sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fastflow.errors import FastflowError, UnsupportedArchitecture
from fastflow.kernels.encoder import BUCKETS, EncoderShape
from fastflow.model.hashing import is_file
from fastflow.model.tensors import MappedTensors
from fastflow.values import number, short
from fastflow.values import read_config as read_config
from fastflow.values import whole_number as whole_number

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
ROBERTA = ("roberta", "xlm-roberta", "camembert")
CPU_ONLY = ("mpnet", "modernbert")
FAMILIES = ("bert", "electra", "distilbert", *ROBERTA, *CPU_ONLY)
ACTIVATION_FIELDS = {"distilbert": "activation", "modernbert": "hidden_activation"}
DISTIL = {"num_hidden_layers": "n_layers", "hidden_size": "dim", "num_attention_heads": "n_heads"}
# PyTorch only: the first token has position row pad_token_id + 1, as in RoBERTa
OFFSET_POSITIONS = ("longformer", "data2vec-text", "ibert", "roberta-prelayernorm", "luke", "xmod", "xlm-roberta-xl")

MODEL2VEC = "model2vec"
# a token table's file, and its tensor in model2vec and in a StaticEmbedding
TABLE, ROWS, BAG = "model.safetensors", "embeddings", "embedding.weight"

SHORTEST = 2
DEEPEST = 1000

# layers of ModernBERT
FULL, LOCAL = "full_attention", "sliding_attention"
BASES = {FULL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}
LARGEST_BASE = 1e12
LONGEST = 1 << 16


class EncoderSize(NamedTuple):
    """Layers, width D and longest text (in tokens) of an encoder."""

    layers: int
    hidden: int
    max_tokens: int


def encoder_shape(config: dict[str, Any], where: Path) -> EncoderShape:
    """Read the EncoderShape in ``config``; raises UnsupportedArchitecture if the kernels cannot compute it."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedArchitecture(
            f"{where}: architecture {short(family)} is not supported; supported are {', '.join(FAMILIES)}"
        )
    name = ACTIVATION_FIELDS.get(family, "hidden_act")
    activation = config.get(name, "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UnsupportedArchitecture(
            f"{where / 'config.json'}, field {name}: activation {short(activation)} is not supported; known are "
            f"{', '.join(ACTIVATIONS)}"
        )
    if config.get("position_embedding_type", "absolute") != "absolute":
        # PyTorch cannot run it either: transformers 5 ignores it
        raise FastflowError(
            f"{where / 'config.json'}, field position_embedding_type: only absolute position embeddings are supported"
        )
    if config.get("is_decoder"):
        raise UnsupportedArchitecture(f"{where / 'config.json'}, field is_decoder: causal attention is not supported")
    if family == "modernbert":
        shape = _modernbert_shape(config, where, ACTIVATIONS[activation])
    else:
        shape = _post_norm_shape(config, where, ACTIVATIONS[activation])
    if shape.hidden % shape.heads:
        raise FastflowError(f"{where / 'config.json'}: {shape.heads} heads do not divide {shape.hidden} dimensions")
    _check_positions(max_tokens(shape), where)
    return shape


def _post_norm_shape(config: dict[str, Any], where: Path, activation: str) -> EncoderShape:
    family = config["model_type"]
    distil, pad = family == "distilbert", None
    if distil:
        _check_aliases(config, where)
    if family in ROBERTA:
        pad = whole_number({"pad_token_id": 1, **config}, "pad_token_id", where, least=0)
    if family == "mpnet":
        pad = 1
        if config.get("relative_attention_num_buckets", BUCKETS) != BUCKETS:
            # PyTorch cannot run it either: transformers 5 ignores it
            raise FastflowError(f"{where / 'config.json'}, field relative_attention_num_buckets: must be {BUCKETS}")
    return EncoderShape(
        layers=whole_number(config, "n_layers" if distil else "num_hidden_layers", where, least=0),
        hidden=whole_number(config, "dim" if distil else "hidden_size", where),
        heads=whole_number(config, "n_heads" if distil else "num_attention_heads", where),
        intermediate=whole_number(config, "hidden_dim" if distil else "intermediate_size", where),
        eps=1e-12 if distil else number(config.get("layer_norm_eps", 1e-12), "layer_norm_eps", where, 0, 1),
        activation=activation,
        positions=whole_number(config, "max_position_embeddings", where),
        position_start=0 if pad is None else pad + 1,
        pad_id=pad,
    )


def _check_aliases(config: dict[str, Any], where: Path) -> None:
    """Raise if a field by BERT's name, which wins, differs from DistilBERT's."""
    for alias, name in DISTIL.items():
        if config.get(alias, config.get(name)) != config.get(name):
            raise FastflowError(f"{where / 'config.json'}, field {alias}: must be absent, or equal to {name}")


def is_native(directory: Path) -> bool:
    """Return whether the kernels compute the encoder."""
    try:
        encoder_shape(read_config(directory), directory)
    except UnsupportedArchitecture:
        return False
    return True


def _check_positions(tokens: int, where: Path) -> None:
    if tokens < SHORTEST:
        raise FastflowError(
            f"{where / 'config.json'}, field max_position_embeddings: leaves room for {tokens} tokens, and a text "
            f"has at least {SHORTEST}"
        )


def max_tokens(shape: EncoderShape) -> int:
    """Return the most tokens of a text, special ones included."""
    return shape.positions - shape.position_start


def encoder_size(config: dict[str, Any], where: Path) -> EncoderSize:
    """Read the size of any encoder of transformers."""
    try:
        shape = encoder_shape(config, where)
    except UnsupportedArchitecture:
        start = 0
        if config.get("model_type") in OFFSET_POSITIONS:
            start = whole_number({"pad_token_id": 1, **config}, "pad_token_id", where, least=0) + 1
        own = DISTIL if config.get("model_type") == "distilbert" else {}
        layers, hidden = (own.get(name, name) for name in ("num_hidden_layers", "hidden_size"))
        size = EncoderSize(
            layers=whole_number(config, layers, where, most=DEEPEST),
            hidden=whole_number(config, hidden, where),
            max_tokens=whole_number(config, "max_position_embeddings", where) - start,
        )
        _check_positions(size.max_tokens, where)
        return size
    return EncoderSize(shape.layers, shape.hidden, max_tokens(shape))


def is_model2vec(directory: Path) -> bool:
    """Return whether model2vec wrote config.json."""
    if not is_file(directory / "config.json"):
        return False
    config = read_config(directory)
    kind = config.get("model_type")
    return kind == MODEL2VEC or (kind is None and "embedding_dtype" in config)


def is_static(directory: Path) -> bool:
    """Return whether ``directory`` holds a token table."""
    if is_file(directory / "config.json"):
        return is_model2vec(directory)
    if not (is_file(directory / TABLE) and is_file(directory / "tokenizer.json")):
        return False
    return not {BAG, ROWS}.isdisjoint(MappedTensors(directory / TABLE).arrays)


def size_of(directory: Path) -> EncoderSize:
    """Return the size of an encoder or table; a table has 0 layers, and max_tokens MOST if unlimited."""
    if is_static(directory):
        from fastflow.model.static.table import open_table, read_rules

        return EncoderSize(0, open_table(directory).rows.shape[1], read_rules(directory).max_length)
    return encoder_size(read_config(directory), directory)


def vocabulary_of(directory: Path) -> int:
    """Return the number of token ids that have a vector."""
    if is_static(directory):
        from fastflow.model.static.table import open_table

        return open_table(directory).vocabulary
    return whole_number(read_config(directory), "vocab_size", directory)


def _modernbert_shape(config: dict[str, Any], where: Path, activation: str) -> EncoderShape:
    layers = whole_number(config, "num_hidden_layers", where, most=DEEPEST)
    hidden, heads = whole_number(config, "hidden_size", where), whole_number(config, "num_attention_heads", where)
    if hidden % heads == 0 and hidden // heads % 2:
        raise FastflowError(
            f"{where / 'config.json'}, field num_attention_heads: leaves {hidden // heads} dimensions to a head, and "
            "rotary positions turn pairs"
        )
    window = whole_number(config, "local_attention", where) // 2
    _check_ignored(config, where, hidden, heads, window)
    types = _layer_types(config, where, layers)
    bases = _bases(config, where)
    return EncoderShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        intermediate=whole_number(config, "intermediate_size", where),
        eps=number(config.get("norm_eps", 1e-5), "norm_eps", where, 0, 1),
        activation=activation,
        positions=whole_number(config, "max_position_embeddings", where, most=LONGEST),
        position_start=0,
        pad_id=None,
        pre_norm=True,
        gated=True,
        rotary=tuple(bases[kind] for kind in types),
        windows=tuple(None if kind == FULL else window for kind in types),
    )


def _layer_types(config: dict[str, Any], where: Path, layers: int) -> list[str]:
    types = config.get("layer_types")
    if types is None:
        every = whole_number({"global_attn_every_n_layers": 3, **config}, "global_attn_every_n_layers", where)
        return [LOCAL if i % every else FULL for i in range(layers)]
    if not isinstance(types, list) or len(types) != layers:
        raise FastflowError(f"{where / 'config.json'}, field layer_types: must be a list of {layers} types")
    if odd := [kind for kind in types if kind not in (FULL, LOCAL)]:
        raise UnsupportedArchitecture(
            f"{where}: layer_types {short(odd[0])} is not supported; known are {FULL} and {LOCAL}"
        )
    return types


def _bases(config: dict[str, Any], where: Path) -> dict[str, float]:
    given = config.get("rope_parameters")
    if given is not None and (not isinstance(given, dict) or given.keys() - BASES.keys()):
        raise FastflowError(
            f"{where / 'config.json'}, field rope_parameters: must be an object of {FULL} and {LOCAL}, "
            f"not {short(given)}"
        )
    found = {}
    for kind, (older, default) in BASES.items():
        field, settings = f"rope_parameters.{kind}", (given or {}).get(kind, {})
        if not isinstance(settings, dict):
            raise FastflowError(f"{where / 'config.json'}, field {field}: must be an object, not {short(settings)}")
        rope = settings.get("rope_type", settings.get("type", "default"))
        odd = {name: value for name, value in settings.items() if name not in ("rope_type", "type", "rope_theta")}
        if rope != "default" or odd:
            raise UnsupportedArchitecture(
                f"{where}: {field} {short(odd or rope)} is not supported; known is the type default with rope_theta"
            )
        name = f"{field}.rope_theta" if "rope_theta" in settings else older
        base = settings.get("rope_theta", config.get(older, default))
        found[kind] = number(base, name, where, 1, LARGEST_BASE)
    return found


def _check_ignored(config: dict[str, Any], where: Path, hidden: int, heads: int, window: int) -> None:
    only: dict[str, tuple[Any, ...]] = {
        "rope_scaling": (None,),
        "partial_rotary_factor": (None, 1),
        "head_dim": (None, hidden // heads),
        "sliding_window": (None, window),
    }
    for name, values in only.items():
        if config.get(name) not in values:
            raise UnsupportedArchitecture(f"{where}: {name} {short(config[name])} is not supported in ModernBERT")
