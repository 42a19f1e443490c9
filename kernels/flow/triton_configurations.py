"""Configurations of the Triton flow, by kind of plan and number of rows.

``hidden`` was timed on an H100 (``bench/research/triton_table.py``); others use the compiler's report.
"""

from __future__ import annotations

from dataclasses import dataclass

POOL = 16  # tokens that pooling sums at a time
# most tokens of a single text that ``flow_read`` and ``flow_write`` pool themselves
POOL_FUSED = 64
SMALL = 16  # rows in a block of ``unit_rows``
WIDE = 128  # channels in a block of ``pool_mean`` and ``unit_rows``


@dataclass(frozen=True)
class Config:
    """A configuration: the most rows it serves, and constants as in ``triton_bodies``."""

    rows: float
    body: str  # "pair", "loop" or "state"
    BM: int  # rows in a block
    BN: int  # output channels in a chunk
    BK: int  # inputs read together
    HB: int  # hidden units read together
    SCHEME: str  # "fma" or "tf32x3", as in ``triton_parts``
    warps: int
    stages: int
    per_sm: int = 1  # programs per multiprocessor
    AHEAD: int | None = None  # steps loaded early by ``flow_chain``; None: not used


ANY = float("inf")
CONFIGURATIONS: dict[str, tuple[Config, ...]] = {
    "hidden": (
        Config(4, "pair", 1, 32, 512, 16, "fma", 8, 3, AHEAD=2),
        Config(64, "pair", 16, 32, 64, 32, "tf32x3", 4, 3, AHEAD=0),
        Config(4096, "pair", 16, 128, 64, 32, "tf32x3", 4, 3),
        Config(8192, "loop", 32, 32, 32, 64, "tf32x3", 4, 3, 2),
        Config(32768, "loop", 64, 32, 32, 64, "tf32x3", 4, 3, 2),
        Config(ANY, "loop", 128, 32, 16, 64, "tf32x3", 8, 5),
    ),
    "dense": (
        Config(1, "pair", 1, 16, 128, 16, "fma", 8, 3, AHEAD=2),
        Config(1024, "pair", 16, 32, 64, 32, "tf32x3", 4, 3),
        Config(ANY, "loop", 64, 32, 32, 32, "tf32x3", 4, 3, 2),
    ),
    "state": (
        Config(1, "state", 1, 64, 128, 0, "fma", 4, 3),
        Config(4096, "state", 16, 64, 64, 0, "tf32x3", 4, 3, 2),
        Config(ANY, "state", 64, 32, 32, 0, "tf32x3", 4, 3, 2),
    ),
}


# the loop of ``hidden`` from sm_90 on; on older GPUs its registers spill
HOPPER = Config(ANY, "loop", 64, 64, 32, 64, "tf32x3", 4, 3, 2)


def choose(kind: str, rows: int, hopper: bool = False) -> Config:
    """Return the configuration for ``rows``; ``hopper``: compute capability >= 9.0."""
    found = next(config for config in CONFIGURATIONS[kind] if rows <= config.rows)
    return HOPPER if hopper and kind == "hidden" and found.body == "loop" else found
