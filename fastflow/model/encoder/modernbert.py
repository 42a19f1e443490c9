"""ModernBERT's config.json, of transformers 5 or older -> EncoderShape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError, UnsupportedArchitecture
from fastflow.kernels.encoder.shape import EncoderShape
from fastflow.values import flag, number, short, whole_number

FULL, LOCAL = "full_attention", "sliding_attention"
BASES = {FULL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}
LARGEST_BASE = 1e12
LONGEST = 1 << 16
MOST_LAYERS = 1000


def modernbert_shape(config: dict[str, Any], where: Path, activation: str) -> EncoderShape:
    """Read a ModernBERT's EncoderShape; raises UnsupportedArchitecture if the equations do not cover it."""
    layers = whole_number(config, "num_hidden_layers", where, most=MOST_LAYERS)
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


def biases(config: dict[str, Any], where: Path) -> dict[str, bool]:
    """Return which of attention, feed-forward and LayerNorms have biases; by default none."""
    return {part: flag(config, f"{part}_bias", where) for part in ("attention", "mlp", "norm")}


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
