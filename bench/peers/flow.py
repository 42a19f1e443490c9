"""The flow in PyTorch, unfolded: the peers that the fused flow is measured against.

``unfused``  the equations as they stand.
``lean``     the flow written for speed but not folded across steps: inner ActNorms inside their layers, the reversal a
             flip, nothing but z.

The published port is in ``fastflow.bench.peers.port``, the folded plan in plain PyTorch in ``.folded``. Each builder
returns a function from float32 (B, D) to (B, D'), B = 0 included, its weights prepared before the first call.
Definition: Li et al., EMNLP 2020, section 3.2, as in ``fastflow.kernels.flow.equations``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fastflow.bench.peers.folded import chain
from fastflow.stages import calibration
from fastflow.stages.calibration import Stage

Function = Callable[[Tensor], Tensor]


def tensors(stage: Stage, device: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The stage's arrays as tensors, floating-point ones in ``dtype``."""
    tensors = {name: torch.tensor(array, device=device) for name, array in stage.params.items()}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def unfused(stages: Sequence[Stage], device: str, dtype: torch.dtype) -> Function:
    """The equations as they stand, in ``dtype``: in float64 the truth, in float32 the scale of everybody's errors."""
    typed = [Stage(s.kind, s.settings, tensors(s, device, dtype)) for s in stages]
    return lambda x: calibration.apply(typed, x.to(dtype))


def lean(stages: Sequence[Stage], device: str) -> Function:
    """Every stage prepared once, then nine operations a coupling step (ten if the coupling is affine)."""
    parts = [_lean_flow(s, device) if s.kind == "flow" else unfused([s], device, torch.float32) for s in stages]
    return chain(parts)


def _lean_flow(stage: Stage, device: str) -> Function:
    params, s = tensors(stage, device, torch.float64), stage.settings
    steps = [
        [_lean_step(params, f"levels.{level}.{i}.", s["coupling"], s["permutation"]) for i in range(s["depth"])]
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


def _lean_step(params: dict[str, Tensor], prefix: str, coupling: str, permutation: str) -> Function:
    p = {name.removeprefix(prefix): tensor for name, tensor in params.items() if name.startswith(prefix)}
    scale = (3 * p["actnorm.logscale"]).exp()
    scale, shift = scale.float(), (scale * p["actnorm.shift"]).float()
    mix = _mixing(p, permutation)
    layers: list[tuple[Tensor, Tensor]] = []
    for i, bias in ((1, "shift1"), (2, "shift2"), (3, "bias3")):
        gain = (3 * p[f"coupling.net.logscale{i}"]).exp()
        weight, offset = gain[:, None] * p[f"coupling.net.weight{i}"], gain * p[f"coupling.net.{bias}"]
        layers.append((weight.float(), offset.float()))
    (w1, b1), (w2, b2), (w3, b3) = layers
    half = w1.shape[1]
    if coupling == "affine":  # shift rows first, gate rows after, with the gate's + 2 in its bias
        w3, b3 = torch.cat([w3[0::2], w3[1::2]]), torch.cat([b3[0::2], b3[1::2] + 2])

    def step(x: Tensor) -> Tensor:
        y = mix(torch.addcmul(shift, x, scale))
        kept, changed = y[:, :half], y[:, half:]
        out = F.linear(F.linear(F.linear(kept, w1, b1).relu_(), w2, b2).relu_(), w3, b3)
        if coupling == "affine":
            return torch.cat([kept, (changed + out[:, :half]) * out[:, half:].sigmoid()], 1)
        return torch.cat([kept, changed + out], 1)

    return step


def _mixing(p: dict[str, Tensor], permutation: str) -> Function:
    if permutation == "reversal":
        return lambda y: y.flip(1)
    index = p["permutation.index"]
    if permutation == "random":
        return lambda y: y.index_select(1, index)
    diagonal = torch.diag(p["permutation.sign"] * p["permutation.logdiag"].exp())
    lower = p["permutation.lower"].tril(-1) + torch.eye(len(index), dtype=diagonal.dtype, device=diagonal.device)
    matrix = (lower @ (p["permutation.upper"].triu(1) + diagonal))[index].float()
    return lambda y: F.linear(y, matrix)


class OperationCount(TorchDispatchMode):
    """Counts what PyTorch dispatches inside the ``with`` block: operations that compute, and synchronising reads."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.synchronisations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Views, which move no data, count as nothing."""
        if func is torch.ops.aten._local_scalar_dense.default:
            self.synchronisations += 1
        elif not any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
            self.operations += 1
        return func(*args, **(kwargs or {}))


def count_operations(function: Function, x: Tensor) -> tuple[int, int]:
    """(operations, synchronisations) of one call on ``x``; inference mode would hide what composite operations do."""
    with torch.inference_mode(False), torch.no_grad(), OperationCount() as count:
        function(x)
    return count.operations, count.synchronisations
