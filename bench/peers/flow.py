"""The flow in PyTorch as others run it: the peers that the fused flow is measured against.

``port``    the shape of the published PyTorch port of BERT-flow: vectors as (B, C, 1, 1) images, every dense layer a
            1x1 convolution, the reversal a full C x C product, ActNorms that read their "initialised" flag on every
            call, log-determinant and prior's log-density computed along. Additive couplings with reversal only.
``lean``    the same flow written for speed but not folded across steps: inner ActNorms inside their layers, the
            reversal a flip, nothing but z.

The folded plan in plain PyTorch is in ``fastflow.bench.peers.folded``. Each builder returns a function from float32
(B, D) to (B, D'), B = 0 included, its weights prepared before the first call. Definition: Li et al., EMNLP 2020,
section 3.2, as in ``fastflow.kernels.flow.equations``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastflow.bench.peers.folded import chain
from fastflow.errors import FastflowError
from fastflow.stages import calibration
from fastflow.stages.calibration import Stage

Function = Callable[[Tensor], Tensor]


def _tensors(stage: Stage, device: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The stage's arrays as tensors, floating-point ones in ``dtype``."""
    tensors = {name: torch.tensor(array, device=device) for name, array in stage.params.items()}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def unfused(stages: Sequence[Stage], device: str, dtype: torch.dtype) -> Function:
    """The equations as they stand, in ``dtype``: in float64 the truth, in float32 the scale of everybody's errors."""
    typed = [Stage(s.kind, s.settings, _tensors(s, device, dtype)) for s in stages]
    return lambda x: calibration.apply(typed, x.to(dtype))


class PortActNorm(nn.Module):
    """(x + shift) exp(3 logscale) on (B, C, 1, 1), and its log-determinant."""

    initialised: Tensor

    def __init__(self, shift: Tensor, logscale: Tensor) -> None:
        super().__init__()
        self.shift = nn.Parameter(shift[None, :, None, None], requires_grad=False)
        self.logscale = nn.Parameter(logscale[None, :, None, None], requires_grad=False)
        self.register_buffer("initialised", torch.ones((), dtype=torch.uint8, device=shift.device))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.initialised.item() == 0:  # on a GPU this waits for everything queued so far
            raise FastflowError("the flow under test has an ActNorm that was never initialised")
        log_scale = 3.0 * self.logscale
        log_det = x.shape[2] * x.shape[3] * log_scale.sum()
        return (x + self.shift) * log_scale.exp(), log_det


class PortStep(nn.Module):
    """ActNorm -> reversal as a dense 1x1 convolution -> additive coupling whose net is three 1x1 convolutions."""

    def __init__(self, params: dict[str, Tensor], prefix: str) -> None:
        super().__init__()
        p = {name.removeprefix(prefix): tensor for name, tensor in params.items() if name.startswith(prefix)}
        net = {name.removeprefix("coupling.net."): tensor for name, tensor in p.items()}
        self.actnorm = PortActNorm(p["actnorm.shift"], p["actnorm.logscale"])
        self.inner = nn.ModuleList(PortActNorm(net[f"shift{i}"], net[f"logscale{i}"]) for i in (1, 2))
        identity = torch.eye(len(p["actnorm.shift"]), device=p["actnorm.shift"].device)
        weights = (identity.flip(0), net["weight1"], net["weight2"], net["weight3"])
        self.weights = nn.ParameterList(nn.Parameter(w[:, :, None, None], requires_grad=False) for w in weights)
        self.bias = nn.Parameter(net["bias3"], requires_grad=False)
        self.end_scale = nn.Parameter(net["logscale3"][None, :, None, None], requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, log_det = self.actnorm(x)
        kept, changed = F.conv2d(x, self.weights[0]).chunk(2, dim=1)
        hidden = kept
        for weight, norm in zip(list(self.weights)[1:3], self.inner, strict=True):
            hidden = torch.relu_(norm(F.conv2d(hidden, weight))[0])
        out = F.conv2d(hidden, self.weights[3], self.bias) * torch.exp(3.0 * self.end_scale)
        return torch.cat([kept, changed + out], dim=1), log_det + 0.0


class Port(nn.Module):
    """x (B, D) -> z (B, D); the loss is computed on every call, as in the published port, and dropped."""

    def __init__(self, stage: Stage, device: str) -> None:
        super().__init__()
        params, s = _tensors(stage, device), stage.settings
        self.levels = nn.ModuleList(
            nn.ModuleList(PortStep(params, f"levels.{level}.{i}.") for i in range(s["depth"]))
            for level in range(s["levels"])
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.with_loss(x)[0]

    def with_loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z (B, D) and the loss, mean of -log p(x) / (D ln 2)."""
        batch, dim = x.shape
        y, log_p, emitted = x[:, :, None, None], x.new_zeros(batch), []
        for level, steps in enumerate(self.levels):
            assert isinstance(steps, nn.ModuleList)  # noqa: S101 - for the type checker
            if level:
                y, out = y.chunk(2, dim=1)
                log_p = log_p + _prior(out)
                emitted.append(out)
            for step in steps:
                y, log_det = step(y)
                log_p = log_p + log_det
        loss = (-(log_p + _prior(y)) / (math.log(2) * dim)).mean()
        return torch.cat([*emitted, y], dim=1).view(batch, dim), loss


def _prior(z: Tensor) -> Tensor:
    """(B,) log N(z; 0, I), through torch.distributions with its argument checks on, as it comes."""
    zeros = torch.zeros_like(z)
    return torch.distributions.Normal(zeros, torch.exp(zeros)).log_prob(z).sum(dim=(1, 2, 3))


def port(stages: Sequence[Stage], device: str) -> Function | None:
    """The published port's shape, or None where it cannot express the calibration."""
    if len(stages) != 1 or stages[0].kind != "flow":
        return None
    s = stages[0].settings
    return Port(stages[0], device) if (s["coupling"], s["permutation"]) == ("additive", "reversal") else None


def lean(stages: Sequence[Stage], device: str) -> Function:
    """Every stage prepared once, then nine operations a coupling step (ten where the coupling is affine)."""
    parts = [_lean_flow(s, device) if s.kind == "flow" else unfused([s], device, torch.float32) for s in stages]
    return chain(parts)


def _lean_flow(stage: Stage, device: str) -> Function:
    params, s = _tensors(stage, device, torch.float64), stage.settings
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
