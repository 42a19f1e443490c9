"""Configurations of the Triton encoder, by dtype, head and longest text.

Block sizes come from the compiler's resource report on sm_80 and sm_90; thresholds are estimated, not timed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fastflow.kernels.launch import options

DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
COLUMNS = 1024  # columns of a program: eight for each of 128 threads
SMALLEST = 16  # tl.dot takes no narrower operand


@dataclass(frozen=True)
class Attention:
    """A configuration of ``attend``: the widest head and the longest text it serves."""

    head: int  # channels, at most
    tokens: float
    BM: int  # queries in a block
    BN: int  # keys in a block
    warps: int
    stages: int


ANY = float("inf")
WIDEST = 128  # most channels of a head
# bytes of an element -> configurations
ATTENTION: dict[int, tuple[Attention, ...]] = {
    4: (
        Attention(64, 16, 16, 16, 2, 2),
        Attention(64, 64, 16, 32, 2, 2),
        Attention(64, ANY, 32, 32, 4, 2),
        Attention(WIDEST, ANY, 16, 16, 4, 2),
    ),
    2: (
        Attention(64, 16, 16, 16, 2, 2),
        Attention(64, 64, 16, 32, 2, 2),
        Attention(64, ANY, 64, 64, 4, 3),
        Attention(WIDEST, ANY, 32, 32, 4, 2),
    ),
}


def attention(itemsize: int, head: int, longest: int) -> Attention:
    """Return the configuration for heads of ``head`` channels and ``longest`` tokens."""
    return next(config for config in ATTENTION[itemsize] if head <= config.head and longest <= config.tokens)


def attend_constants(config: Attention, head: int, dot: Any) -> dict[str, Any]:
    """Return constants and options of ``attend``; ``dot``: a Triton dtype."""
    wide = getattr(dot, "name", str(dot)) == "fp32"
    return {
        "BM": config.BM, "BN": config.BN, "HD": power_of_two(max(head, SMALLEST)), "DOT": dot,
        "PRECISION": "tf32x3" if wide else "ieee", "VEC": math.gcd(head, 16),
    } | options(config.warps, config.stages)  # fmt: skip


def row_constants(columns: int) -> dict[str, Any]:
    """Return constants of kernels with one program per row."""
    wide = power_of_two(columns)
    return {"BD": wide, "VEC": math.gcd(columns, 16)} | options(4 if wide >= 512 else 1, 1)


def activate_constants(activation: str, columns: int) -> dict[str, Any]:
    """Return constants of ``activate``."""
    block = min(power_of_two(columns), COLUMNS)
    return {"ACT": activation, "BI": block, "VEC": math.gcd(columns, 16)} | options(4, 1)


def power_of_two(number: int) -> int:
    """Return the least power of two >= ``number``."""
    return 1 << max(0, number - 1).bit_length()
