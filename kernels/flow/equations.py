"""Calibrations by their unfolded equations, on NumPy arrays or PyTorch tensors (B, D): the kernels' definition."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
Params = Mapping[str, Array]


def _namespace(x: Array) -> ModuleType:
    if isinstance(x, np.ndarray):
        return np
    import torch

    return torch


def standardize(x: Array, mean: Array, deviation: Array) -> Array:
    """Compute (x - mean) / deviation. mean, deviation: (D,)."""
    return (x - mean) / deviation


def nullspace(x: Array, mean: Array, directions: Array) -> Array:
    """Subtract ``mean`` (D,), then the part along ``directions`` (k, D), orthonormal (Mu & Viswanath 2018, algorithm
    1).
    """
    centred = x - mean
    return centred - (centred @ directions.T) @ directions


def whiten(x: Array, mean: Array, matrix: Array) -> Array:
    """Compute (x - mean) Q Lambda^(-1/2) (Su et al. 2021). mean: (D,), matrix: (D, k)."""
    return (x - mean) @ matrix


def recolour(x: Array, mean: Array, matrix: Array, shift: Array) -> Array:
    """Compute (x - mean) matrix + shift, which restores part of the embedding's spectrum. mean, shift: (D,).

    matrix (D, D) is V S^(1-g), g the spectrum setting, if the map U S V^T best reconstructs the embedding from ``x``.
    """
    return (x - mean) @ matrix + shift


def linear(x: Array, matrix: Array, shift: Array) -> Array:
    """Compute x matrix + shift. matrix: (D, k), shift: (k,)."""
    return x @ matrix + shift


def coupling_net(x: Array, params: Params, prefix: str) -> Array:
    """Compute the coupling's network (B, h) -> (B, o). weight1 (w, h), weight2 (w, w), weight3 (o, w)."""
    xp = _namespace(x)
    p = {name: params[f"{prefix}{name}"] for name in _NET}
    hidden = ((x @ p["weight1"].T + p["shift1"]) * xp.exp(3 * p["logscale1"])).clip(min=0)
    hidden = ((hidden @ p["weight2"].T + p["shift2"]) * xp.exp(3 * p["logscale2"])).clip(min=0)
    return (hidden @ p["weight3"].T + p["bias3"]) * xp.exp(3 * p["logscale3"])


_NET = ("weight1", "shift1", "logscale1", "weight2", "shift2", "logscale2", "weight3", "bias3", "logscale3")


def permute(x: Array, params: Params, prefix: str, kind: str) -> tuple[Array, Array | float]:
    """Mix channels: reversal, a stored random order, or P L (U + diag(sign exp(logdiag))) x."""
    if kind == "reversal":
        return x[:, list(range(x.shape[1] - 1, -1, -1))], 0.0
    index = params[f"{prefix}index"]
    if kind == "random":
        return x[:, index], 0.0
    xp = _namespace(x)
    logdiag = params[f"{prefix}logdiag"]
    upper = xp.triu(params[f"{prefix}upper"], 1) + xp.diag(params[f"{prefix}sign"] * xp.exp(logdiag))
    lower = xp.tril(params[f"{prefix}lower"], -1)  # the unit diagonal is added below
    x = x @ upper.T
    return (x + x @ lower.T)[:, index], logdiag.sum()


def step(x: Array, params: Params, prefix: str, coupling: str, permutation: str) -> tuple[Array, Array]:
    """Apply ActNorm, permutation and coupling to (B, C); return (B, C) and the log-determinant (B,)."""
    xp = _namespace(x)
    logscale = params[f"{prefix}actnorm.logscale"]
    x = (x + params[f"{prefix}actnorm.shift"]) * xp.exp(3 * logscale)
    x, log_det = permute(x, params, f"{prefix}permutation.", permutation)
    half = x.shape[1] // 2
    kept, changed = x[:, :half], x[:, half:]
    out = coupling_net(kept, params, f"{prefix}coupling.net.")
    log_det = (3 * logscale).sum() + log_det + xp.zeros_like(x[:, 0])
    if coupling == "additive":
        return xp.concatenate([kept, changed + out], 1), log_det
    gate, shift = out[:, 1::2] + 2, out[:, 0::2]
    log_gate = gate.clip(max=0) - xp.log1p(xp.exp(-abs(gate)))  # log sigmoid, without overflow
    return xp.concatenate([kept, (changed + shift) * xp.exp(log_gate)], 1), log_det + log_gate.sum(1)


def flow(x: Array, params: Params, levels: int, depth: int, coupling: str, permutation: str) -> tuple[Array, Array]:
    """Map x (B, D) to z (B, D) and log|det dz/dx| (B,); z = concat[eps_0, ..., top] (Li et al. 2020, section 3.2)."""
    xp = _namespace(x)
    log_det, emitted = xp.zeros_like(x[:, 0]), []
    for level in range(levels):
        if level:
            half = x.shape[1] // 2
            emitted.append(x[:, half:])
            x = x[:, :half]
        for index in range(depth):
            x, step_log_det = step(x, params, f"levels.{level}.{index}.", coupling, permutation)
            log_det = log_det + step_log_det
    return xp.concatenate([*emitted, x], 1), log_det
