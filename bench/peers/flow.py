"""The flow in plain PyTorch: the equations (Li et al., EMNLP 2020, section 3.2), and a lean form.

Each builder returns a function from float32 (B, D) to (B, N), with prepared weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fastflow.stages import calibration
from fastflow.stages.calibration import Stage

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
