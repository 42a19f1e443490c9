"""The flow in plain PyTorch: the equations (Li et al., EMNLP 2020, section 3.2), a lean form, and the folded plan.

Each builder returns a function from float32 (B, D) to (B, N), with prepared weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fastflow.kernels.flow import Plan
from fastflow.transforms import calibration
from fastflow.transforms.calibration import Stage

Function = Callable[[Tensor], Tensor]


def _to_tensors(stage: Stage, device: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    tensors = {name: torch.tensor(array, device=device) for name, array in stage.params.items()}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def build_unfused(stages: Sequence[Stage], device: str, dtype: torch.dtype) -> Function:
    """Build the equations: in float64 the truth, in float32 the scale of errors."""
    typed = [Stage(s.kind, s.settings, _to_tensors(s, device, dtype)) for s in stages]
    return lambda x: calibration.apply(typed, x.to(dtype))


def build_lean(stages: Sequence[Stage], device: str) -> Function:
    """Build the lean form, with inner ActNorms in their layers: nine operations a coupling step, ten if affine."""
    parts = [
        _build_lean_flow(s, device) if s.kind == "flow" else build_unfused([s], device, torch.float32) for s in stages
    ]
    return call_in_turn(parts)


def call_in_turn(parts: Sequence[Function]) -> Function:
    """Return the function that calls ``parts`` in sequence."""
    if len(parts) == 1:
        return parts[0]

    def run(x: Tensor) -> Tensor:
        for part in parts:
            x = part(x)
        return x

    return run


def _build_lean_flow(stage: Stage, device: str) -> Function:
    params, s = _to_tensors(stage, device, torch.float64), stage.settings
    steps = [
        [_build_lean_step(params, f"levels.{level}.{i}.", s["coupling"], s["permutation"]) for i in range(s["depth"])]
        for level in range(s["levels"])
    ]

    def run(x: Tensor) -> Tensor:
        emitted = []
        for level, level_steps in enumerate(steps):
            if level:
                half = x.shape[1] // 2
                emitted.append(x[:, half:])
                x = x[:, :half]
            for step in level_steps:
                x = step(x)
        return torch.cat([*emitted, x], 1)

    return run


def _build_lean_step(params: dict[str, Tensor], prefix: str, coupling: str, permutation: str) -> Function:
    p = {name.removeprefix(prefix): tensor for name, tensor in params.items() if name.startswith(prefix)}
    scale = (3 * p["actnorm.logscale"]).exp()
    scale, shift = scale.float(), (scale * p["actnorm.shift"]).float()
    mix = _build_mixing(p, permutation)
    layers: list[tuple[Tensor, Tensor]] = []
    for i, bias in ((1, "shift1"), (2, "shift2"), (3, "bias3")):
        gain = (3 * p[f"coupling.net.logscale{i}"]).exp()
        weight, offset = gain[:, None] * p[f"coupling.net.weight{i}"], gain * p[f"coupling.net.{bias}"]
        layers.append((weight.float(), offset.float()))
    (w1, b1), (w2, b2), (w3, b3) = layers
    half = w1.shape[1]
    if coupling == "affine":  # shift rows, then gate rows, with the gate's + 2 in its bias
        w3, b3 = torch.cat([w3[0::2], w3[1::2]]), torch.cat([b3[0::2], b3[1::2] + 2])

    def step(x: Tensor) -> Tensor:
        y = mix(torch.addcmul(shift, x, scale))
        kept, changed = y[:, :half], y[:, half:]
        out = F.linear(F.linear(F.linear(kept, w1, b1).relu_(), w2, b2).relu_(), w3, b3)
        if coupling == "affine":
            return torch.cat([kept, (changed + out[:, :half]) * out[:, half:].sigmoid()], 1)
        return torch.cat([kept, changed + out], 1)

    return step


def _build_mixing(p: dict[str, Tensor], permutation: str) -> Function:
    if permutation == "reversal":
        return lambda y: y.flip(1)
    index = p["permutation.index"]
    if permutation == "random":
        return lambda y: y.index_select(1, index)
    diagonal = torch.diag(p["permutation.sign"] * p["permutation.logdiag"].exp())
    lower = p["permutation.lower"].tril(-1) + torch.eye(len(index), dtype=diagonal.dtype, device=diagonal.device)
    matrix = (lower @ (p["permutation.upper"].triu(1) + diagonal))[index].float()
    return lambda y: F.linear(y, matrix)


def build_folded(plans: Sequence[Plan], device: str) -> Function:
    """Build float64 ``plans``; zero blocks are skipped, and results are written in place."""
    return call_in_turn([_build_plan(plan, device) for plan in plans])


def _to_tensor(array: NDArray[Any], device: str) -> Tensor:
    return torch.tensor(np.ascontiguousarray(array), device=device).float()


def _to_right_factor(matrix: NDArray[Any], device: str) -> Tensor:
    # (n, m) -> (m, n)
    return _to_tensor(matrix.T, device)


def _build_prologue(plan: Plan, device: str) -> Function:
    """x -> u = L ((x - m) s), a new tensor (B, M), in one operation."""
    if plan.L is not None:
        matrix, bias = _to_right_factor(plan.L * plan.s, device), _to_tensor(-plan.L @ (plan.m * plan.s), device)
        return lambda x: torch.addmm(bias, x, matrix)
    scale, shift = _to_tensor(plan.s, device), _to_tensor(-plan.m * plan.s, device)
    return lambda x: torch.addcmul(shift, x, scale)


def _build_epilogue(plan: Plan, device: str) -> Function:
    """u -> S u + t, a new tensor (B, N)."""
    offset = _to_tensor(plan.t, device)
    if plan.gather is None:
        matrix = _to_right_factor(plan.S, device)
        return lambda u: torch.addmm(offset, u, matrix)
    gather, diagonal = torch.tensor(plan.gather.astype(np.int64), device=device), _to_tensor(plan.S, device)
    return lambda u: torch.addcmul(offset, u.index_select(1, gather), diagonal)


def _build_plan(plan: Plan, device: str) -> Function:
    """u <- (u + V_k h_k + p_k) sigmoid(R_k h_k + q_k), additive u <- u + V_k h_k; then z = S u + t."""
    w = plan.width
    enter, leave = _build_prologue(plan, device), _build_epilogue(plan, device)
    steps = []
    for k in range(plan.steps):
        own, read, write = slice(k * w, (k + 1) * w), slice(*plan.reads[k]), slice(*plan.writes[k])
        inner = _to_right_factor(plan.B[k], device), _to_tensor(plan.d[k], device)
        last, bias = plan.V[write, own], None
        if plan.R is not None and plan.q is not None:
            last = np.concatenate([last, plan.R[write, own]])
            bias = _to_tensor(np.concatenate([plan.p[k, write], plan.q[k, write]]), device)
        first = _to_right_factor(plan.U[own, read], device), _to_tensor(plan.c[own], device)
        steps.append((read, *first, *inner, write, _to_right_factor(last, device), bias))

    def run_plan(x: Tensor) -> Tensor:
        u = enter(x)
        for read, weight, offset, inner, inner_bias, write, last, bias in steps:
            h = torch.addmm(offset, u[:, read], weight).relu_()
            h = torch.addmm(inner_bias, h, inner).relu_()
            if bias is None:
                u[:, write].addmm_(h, last)
            else:
                shift, gate = torch.addmm(bias, h, last).chunk(2, 1)
                u[:, write].add_(shift).mul_(gate.sigmoid_())
        return leave(u)

    return run_plan
