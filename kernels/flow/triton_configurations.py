"""Configurations of the Triton flow, by kind of plan and number of rows.

``hidden`` was timed on an H100 (``bench/research/triton_table.py``); others use the compiler's report.
"""

from __future__ import annotations

from dataclasses import dataclass

POOL = 16  # tokens that pooling sums at a time
# most tokens of a single text that ``flow_read`` and ``flow_emit`` pool themselves
POOL_FUSED = 64
SMALL = 16  # rows in a block of ``unit_rows``
WIDE = 128  # channels in a block of ``pool_mean`` and ``unit_rows``


@dataclass(frozen=True)
class Config:
    """A configuration: the most rows it serves, and constants as in ``triton_bodies``."""

    rows: float
    BM: int  # rows in a block
    BN: int  # output channels in a chunk
    BK: int  # inputs read together
    HB: int  # hidden units read together
    SCHEME: str  # "fma", "tf32x3" or "split", as in ``triton_parts``
    warps: int
    stages: int
    per_sm: int = 1  # programs of ``flow_state`` per multiprocessor
    AHEAD: int | None = None  # steps loaded early by ``flow_chain``; None: not used


ANY = float("inf")
CONFIGURATIONS: dict[str, tuple[Config, ...]] = {
    "hidden": (
        Config(4, 1, 32, 512, 8, "fma", 8, 3, AHEAD=2),
        Config(64, 16, 32, 64, 32, "tf32x3", 4, 3, AHEAD=1),
        Config(2048, 16, 64, 64, 32, "tf32x3", 4, 3),
        Config(ANY, 64, 64, 32, 32, "split", 4, 3),
    ),
    "dense": (
        Config(1, 1, 16, 128, 16, "fma", 8, 3, AHEAD=2),
        Config(1024, 16, 32, 64, 32, "tf32x3", 4, 3),
        Config(ANY, 64, 64, 32, 32, "split", 4, 3),
    ),
    "state": (
        Config(1, 1, 64, 128, 0, "fma", 4, 3),
        Config(4096, 16, 64, 64, 0, "tf32x3", 4, 3, 2),
        Config(ANY, 64, 32, 32, 0, "tf32x3", 4, 3, 2),
    ),
}


def choose(kind: str, rows: int) -> Config:
    """Return the configuration for ``rows``."""
    return next(config for config in CONFIGURATIONS[kind] if rows <= config.rows)
