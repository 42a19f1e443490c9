"""Calibration stages with random parameters: well conditioned, and no array of zeros."""

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastflow.transforms.calibration import Stage, describe, list_shapes

KINDS = ("flow", "recolour", "whiten", "standardize", "nullspace")


@dataclass(frozen=True, repr=False)
class Chain:
    """Stages in order, their input width, and the seed that made them."""

    stages: list[Stage]
    dim: int
    seed: int

    def __repr__(self) -> str:
        return f"{self.dim} -> {describe(self.stages)}, seed {self.seed}"

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed + 1)


def standardize(rng: np.random.Generator, dim: int) -> Stage:
    return Stage("standardize", {}, {"mean": rng.normal(size=dim), "deviation": rng.uniform(0.5, 2, dim)})


def nullspace(rng: np.random.Generator, dim: int, count: int = 3) -> Stage:
    directions = np.linalg.qr(rng.normal(size=(dim, count)))[0].T
    return Stage("nullspace", {}, {"mean": rng.normal(size=dim), "directions": directions})


def whiten(rng: np.random.Generator, dim: int, outputs: int) -> Stage:
    matrix = rng.normal(size=(dim, outputs)) / np.sqrt(dim)
    return Stage("whiten", {}, {"mean": rng.normal(size=dim), "matrix": matrix})


def recolour(rng: np.random.Generator, dim: int) -> Stage:
    """Directions of unequal scale, as after a flow: the first carries ten times the last."""
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    matrix = axes * np.geomspace(1, 0.1, dim)
    params = {"mean": 0.1 * rng.normal(size=dim), "matrix": matrix, "shift": rng.normal(size=dim)}
    return Stage("recolour", {"spectrum": 0.25, "mean_share": 0.2, "demoted": 1}, params)


def flow(
    rng: np.random.Generator,
    dim: int,
    levels: int = 3,
    depth: int = 3,
    width: int = 32,
    coupling: str = "additive",
    permutation: str = "reversal",
) -> Stage:
    settings: dict[str, Any] = {"levels": levels, "depth": depth, "width": width}
    stage = Stage("flow", settings | {"coupling": coupling, "permutation": permutation})
    params = {name: _values(rng, name, shape) for name, shape in list_shapes(stage, dim).items()}
    return Stage("flow", stage.settings, params)


def _values(rng: np.random.Generator, name: str, shape: Any) -> Any:
    if name.endswith("index"):
        return rng.permutation(shape[0])
    if name.endswith("sign"):
        return rng.choice([-1.0, 1.0], shape)
    if "logscale" in name or name.endswith("logdiag"):
        return rng.uniform(-0.15, 0.15, shape)
    if "weight" in name:
        return rng.normal(size=shape) / np.sqrt(shape[1])
    if name.endswith(("lower", "upper")):
        return rng.normal(size=shape) / (2 * np.sqrt(shape[0]))
    return 0.3 * rng.normal(size=shape)


def every_operation() -> list[Stage]:
    """Stages (104 -> 72) with each operation of a plan: dense prologue and output, gates, gathers."""
    rng = np.random.default_rng(11)
    return [
        whiten(rng, 104, 96),
        flow(rng, 96, 3, 2, 20, permutation="random"),
        recolour(rng, 96),
        whiten(rng, 96, 72),
        flow(rng, 72, 2, 2, 40, "affine"),
        nullspace(rng, 72),
        flow(rng, 72, 2, 3, 70),
    ]


def linear(rng: np.random.Generator, dim: int) -> Stage:
    return Stage("linear", {}, {"matrix": rng.normal(size=(dim, dim)) / np.sqrt(dim), "shift": rng.normal(size=dim)})


LINEAR = {"standardize": standardize, "nullspace": nullspace, "recolour": recolour, "linear": linear}


def draw_chain(rng: Random, dims: tuple[int, ...], widths: tuple[int, ...], flows: int = 0) -> Chain:
    """Up to three stages in any order, ``flows`` of them flows at least; an odd width has no flow."""
    seed = rng.getrandbits(32)
    numbers, dim = np.random.default_rng(seed), rng.choice(dims)
    inputs, stages = dim, []
    kinds = ["flow"] * flows + rng.choices(KINDS, k=rng.randint(1 - flows, 3 - flows))
    for kind in rng.sample(kinds, len(kinds)):
        most = min(4, (dim & -dim).bit_length() - 1)
        if kind == "flow" and most:
            shape = rng.randint(1, most), rng.randint(1, 4), rng.choice(widths)
            coupling = rng.choice(("additive", "affine"))
            stages.append(flow(numbers, dim, *shape, coupling, rng.choice(("reversal", "random", "lu"))))
        elif kind == "whiten":
            outputs = rng.choice((dim, *(max(2, n & ~1) for n in (dim // 2, dim // 4 + 2))))
            stages.append(whiten(numbers, dim, outputs))
            dim = outputs
        elif kind == "nullspace":
            stages.append(nullspace(numbers, dim, min(3, dim // 2)))
        elif kind != "flow":
            stages.append(LINEAR[kind](numbers, dim))
    return Chain(stages or [standardize(numbers, dim)], inputs, seed)


def chains(widths: tuple[int, ...] = (8, 17, 32, 64, 100, 256)) -> st.SearchStrategy[Chain]:
    """Chains with a flow at least."""
    dims = (16, 48, 80, 112, 272, 384, 768)
    return st.integers(0, 2**32).map(lambda seed: draw_chain(Random(seed), dims, widths, flows=1))
