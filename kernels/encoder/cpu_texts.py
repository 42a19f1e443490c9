"""Steps over texts for the compiled encoder: buffers of pooled vectors, and the modules after pooling.

Fields and numbers are those of ``c/encoder/encoder.h``; the definition is ``kernels.encoder.texts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels._cpu import (
    FIRST_TOKEN,
    LARGEST_OF,
    LAST_TOKEN,
    MAP,
    MAPS,
    MEAN,
    MEAN_SQRT,
    NORM,
    OUTPUT,
    POOL,
    POSITION_MEAN,
    UNIT,
)
from fastflow.kernels.encoder.cpu_layout import EncoderProgram
from fastflow.kernels.encoder.shape import Dense, Head, Norm, Unit, head_width

POOLINGS = {
    "mean": MEAN,
    "mean_sqrt_len_tokens": MEAN_SQRT,
    "weightedmean": POSITION_MEAN,
    "max": LARGEST_OF,
    "cls": FIRST_TOKEN,
    "lasttoken": LAST_TOKEN,
}
IN_PRODUCT = {
    "identity": "none",
    "tanh": "tanh",
    "relu": "relu",
    "gelu": "gelu",
}  # activations that a product applies itself
TEXT, OTHER, PROJECTED = "text", "other text", "projected text"  # buffers of a row a text


def head_weights(head: Head) -> dict[str, NDArray[Any]]:
    """The arrays of ``head`` under the names that ``add_head`` reads."""
    found: dict[str, NDArray[Any]] = {}
    for i, module in enumerate(head):
        if isinstance(module, Dense):
            found |= {f"head.{i}.weight": module.weight, f"head.{i}.bias": module.bias}
            if module.projection is not None:
                found[f"head.{i}.projection.weight"] = module.projection
                found[f"head.{i}.projection.bias"] = np.zeros(len(module.projection), np.float32)
    return found


def check_pooling(mode: str, layers: int, head: Head, shares: Sequence[float] | None) -> None:
    """Raise ValueError for a pooling that is unknown, or that cannot run with this number of layers or this head."""
    parts = mode.split("+")
    if mode != "pooler" and (odd := [part for part in parts if part not in POOLINGS]):
        raise ValueError(f"pooling {odd[0]!r} is not known; known are {', '.join(POOLINGS)} and pooler")
    if "max" in parts and layers > 1:
        raise ValueError("pooling 'max' is of one layer, not of several")
    if "max" in parts and shares is not None and tuple(shares) != (1,):
        raise ValueError("pooling 'max' takes its layer whole, not a share of it")
    if mode == "pooler" and head:
        raise ValueError("pooling 'pooler' runs without modules behind it")


def text_widths(head: Head, pooled: int) -> dict[str, int]:
    """Buffer -> columns, for the buffers that ``add_head`` needs; empty without a head."""
    if not head:
        return {}
    widest = max([pooled, *(head_width(head[: i + 1], pooled) for i in range(len(head)))])
    projects = any(isinstance(module, Dense) and module.projection is not None for module in head)
    names = [TEXT, OTHER, *([PROJECTED] if projects else [])]
    return dict.fromkeys(names, widest)


def add_pool(program: EncoderProgram, mode: str, slot: int, share: float, first: bool, to: str | int) -> None:
    """Add steps that pool the states in x in every part of ``mode``, side by side."""
    width, place = program.shape.hidden, program.put(np.array([share], np.float32))
    for i, part in enumerate(mode.split("+")):
        program.step(
            POOL, source="x", target=to, width=width, slot=slot, mode=POOLINGS[part], column=i * width, share=place,
            first=int(first),
        )  # fmt: skip


def add_head(program: EncoderProgram, head: Head, width: int) -> None:
    """Add the modules of ``head`` on the pooled vectors in TEXT, and the step that returns the result."""
    here, other = TEXT, OTHER
    for i, module in enumerate(head):
        if isinstance(module, Dense):
            _dense(program, module, f"head.{i}", here, other)
            here, other = other, here
        elif isinstance(module, Unit):
            program.step(UNIT, target=here, width=width)
        else:
            _norm(program, module, here, width)
        width = module.width(width)
    program.step(OUTPUT, source=here, width=width)


def _norm(program: EncoderProgram, module: Norm, where: str, width: int) -> None:
    places = {
        name: program.put(np.asarray(values, np.float32))
        for name, values in (("scale", module.scale), ("bias", module.bias), ("eps", [module.eps]))
    }
    program.step(NORM, source=where, target=where, texts=1, width=width, **places)


def _dense(program: EncoderProgram, module: Dense, name: str, source: str, target: str) -> None:
    add: str | int = -1
    if module.residual:
        add = source
        if module.projection is not None:
            add = PROJECTED
            program.linear(f"{name}.projection", source, PROJECTED, texts=1)
    fused = module.activation in IN_PRODUCT and (module.activation == "identity" or not module.residual)
    activation = IN_PRODUCT[module.activation] if fused else "none"
    program.linear(name, source, target, activation, texts=1, add=add if fused else -1)
    if not fused:
        program.step(MAP, target=target, width=len(module.weight), activation=MAPS[module.activation], add=add)
