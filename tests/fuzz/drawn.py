"""Draw small encoders of every form, and calibrations of ``DIMS`` and ``WIDTHS``."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from fastflow.kernels.encoder import MODES, WORDS
from fastflow.kernels.encoder.texts import ACTIVATIONS, Dense, Norm, Unit

from support.packed import VOCABULARY, random_encoder, random_modernbert, random_mpnet

DIMS, WIDTHS = (2, 8, 12, 16, 24, 34, 48, 80), (1, 3, 8, 17, 33, 40)  # of calibrations


def _draw_head(rng: Random, numbers: np.random.Generator, width: int) -> list[Any]:
    modules: list[Any] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        kind, to = rng.choice(("dense", "norm", "unit")), rng.choice((width, 5, 40))
        if kind == "unit":
            modules.append(Unit())
        elif kind == "norm":
            modules.append(Norm(*numbers.normal(1, 0.3, (2, width)).astype(np.float32), rng.choice((1e-12, 1e-5))))
        else:
            residual = rng.random() < 0.4
            projection = numbers.normal(0, width**-0.5, (to, width)).astype(np.float32) if to != width else None
            weight = numbers.normal(0, width**-0.5, (to, width)).astype(np.float32)
            bias = numbers.normal(size=to).astype(np.float32)
            name = rng.choice(list(ACTIVATIONS))
            modules.append(Dense(weight, bias, name, residual, projection if residual else None))
            width = to
    return modules


def draw_encoder(rng: Random) -> tuple[Any, Any, str, tuple[int, ...], dict[str, Any]]:
    """Return the arguments of CpuEncoder: weights, shape, mode, layers, and the rest by name."""
    kind, layers, heads = rng.choice(("bert", "electra", "mpnet", "modernbert")), rng.randint(1, 3), rng.randint(1, 3)
    hidden, wide = heads * 2 * rng.randint(4, 20), rng.choice((1, 7, 33, 70, 100))
    seed, activation, half = rng.getrandbits(16), rng.choice(("gelu", "gelu_tanh", "relu")), rng.random() < 0.3
    shape = seed, layers, hidden, heads, wide, activation
    if kind == "mpnet":
        made = random_mpnet(*shape[:5], half=half)
    elif kind == "modernbert":
        made = random_modernbert(*shape, window=rng.choice((0, 3, 8)), biases=rng.random() < 0.5, half=half)
    else:
        narrow = rng.choice((None, 5, 24)) if kind == "electra" else None
        made = random_encoder(*shape, width=narrow, pad_id=rng.choice((None, 1)), half=half)
    numbers = np.random.default_rng(seed)
    lowest = WORDS if "position" in made[0] else 0
    pooled = tuple(sorted(rng.sample(range(lowest, layers + 1), rng.choice((1, 1, 2)))))
    if "pooler.weight" in made[0] and rng.random() < 0.15:
        return *made, "pooler", (layers,), {}
    modes = rng.sample([mode for mode in MODES if len(pooled) == 1 or mode != "max"], rng.choice((1, 1, 2)))
    options: dict[str, Any] = {"head": _draw_head(rng, numbers, hidden * len(modes))}
    if rng.random() < 0.3:
        options["token_weights"] = (0.01 ** numbers.random(VOCABULARY)).astype(np.float32)
    if rng.random() < 0.3 and "max" not in modes:
        options["shares"] = [rng.choice((0.5, 1.0, -0.25)) for _ in pooled]
    return *made, "+".join(modes), pooled, options
