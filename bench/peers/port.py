"""The flow in the shape of the published PyTorch port of BERT-flow.

Vectors are (B, C, 1, 1) images, every dense layer is a 1x1 convolution, the reversal a full C x C product. ActNorms
read their "initialised" flag on every call, and the log-determinant and the prior's log-density are computed along. The
port has additive couplings with reversal only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastflow.bench.peers.flow import Function, tensors
from fastflow.errors import FastflowError
from fastflow.stages.calibration import Stage


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
        params, s = tensors(stage, device), stage.settings
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
    """The published port's shape, or None if it cannot express the calibration."""
    if len(stages) != 1 or stages[0].kind != "flow":
        return None
    s = stages[0].settings
    return Port(stages[0], device) if (s["coupling"], s["permutation"]) == ("additive", "reversal") else None
