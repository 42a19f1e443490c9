"""BERT-flow's normalizing flow and its layers (Li et al., EMNLP 2020, 3.2; the official ``glow_1x1.py``).

Glow without squeezing: a level runs ``depth`` steps, emits its second half of channels, and passes on the first.
A layer maps (B, C) to (B, C), and returns its log-determinant, (B,) or a scalar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from fastflow.errors import FastflowError
from fastflow.train.methods.closed_forms import mask_constant
from fastflow.train.options import DEFAULTS, SMALL
from fastflow.train.reporter import refuse

LOGSCALE_FACTOR = 3.0  # Glow: speeds up learning


def draw_glorot(channels: int) -> Tensor:
    """Draw (C,) uniform values within +-sqrt(6/(1+C)), as the official code does."""
    bound = math.sqrt(6.0 / (1 + channels))
    return torch.empty(channels).uniform_(-bound, bound)


class ActNorm(nn.Module):
    """y = (x + shift) * exp(3 logscale), per channel; log-det = sum(3 logscale)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(draw_glorot(channels))
        self.logscale = nn.Parameter(draw_glorot(channels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_scale = LOGSCALE_FACTOR * self.logscale
        return (x + self.shift) * log_scale.exp(), log_scale.sum()

    @torch.no_grad()
    def initialise(self, x: Tensor, constant: Tensor) -> Tensor:
        """Normalise ``x`` (B, C); return the mask (C,) of constant channels, which keep their scale."""
        mean, deviation = x.mean(dim=0), x.std(dim=0, correction=0)
        constant = constant | torch.from_numpy(mask_constant(mean.double().numpy(), deviation.double().numpy() ** 2))
        if bool(constant.all()):
            raise FastflowError(
                f"data-dependent initialisation: every channel is constant over the {x.shape[0]} sentences used; give "
                "more varied text"
            )
        self.shift.copy_(-mean)
        self.logscale.copy_((-(deviation + 1e-6).log() / LOGSCALE_FACTOR).masked_fill(constant, 0))
        return constant


class Permutation(nn.Module):
    """A fixed permutation y_i = x_index(i); log-det 0. One ``derived`` from the width is not saved."""

    index: Tensor

    def __init__(self, index: Tensor, derived: bool) -> None:
        super().__init__()
        self.register_buffer("index", index, persistent=not derived)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, self.index], x.new_zeros(())


class LUPermutation(nn.Module):
    """Glow's learned y = P L (U + diag(sign exp(logdiag))) x; log-det = sum(logdiag).

    P is fixed, L unit lower and U strictly upper triangular. The start is a rotation (Kingma & Dhariwal 2018, 3.2).
    """

    index: Tensor
    sign: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        rotation = torch.linalg.qr(torch.randn(channels, channels, dtype=torch.float64))[0]
        p, lower, upper = torch.linalg.lu(rotation)
        diagonal = upper.diagonal()
        self.register_buffer("index", p.argmax(dim=1))
        self.register_buffer("sign", diagonal.sign().float())
        self.lower = nn.Parameter(lower.tril(-1).float())
        self.upper = nn.Parameter(upper.triu(1).float())
        self.logdiag = nn.Parameter(diagonal.abs().log().float())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lower = self.lower.tril(-1) + torch.eye(len(self.sign), dtype=self.lower.dtype, device=self.lower.device)
        upper = self.upper.triu(1) + torch.diag(self.sign * self.logdiag.exp())
        return (x @ upper.T @ lower.T)[:, self.index], self.logdiag.sum()


class CouplingNet(nn.Module):
    """The net g of a coupling, (B, h) -> (B, outputs); its last layer starts at 0.

    h1 = relu((W1 x + shift1) * exp(3 logscale1)); h2 = relu((W2 h1 + shift2) * exp(3 logscale2));
    g = (W3 h2 + bias3) * exp(3 logscale3).
    """

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.weight1 = nn.Parameter(torch.randn(width, inputs) * 0.05)
        self.shift1, self.logscale1 = nn.Parameter(draw_glorot(width)), nn.Parameter(draw_glorot(width))
        self.weight2 = nn.Parameter(torch.randn(width, width) * 0.05)
        self.shift2, self.logscale2 = nn.Parameter(draw_glorot(width)), nn.Parameter(draw_glorot(width))
        self.weight3 = nn.Parameter(torch.zeros(outputs, width))
        self.bias3, self.logscale3 = nn.Parameter(torch.zeros(outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu((x @ self.weight1.T + self.shift1) * (LOGSCALE_FACTOR * self.logscale1).exp())
        hidden = torch.relu((hidden @ self.weight2.T + self.shift2) * (LOGSCALE_FACTOR * self.logscale2).exp())
        return (hidden @ self.weight3.T + self.bias3) * (LOGSCALE_FACTOR * self.logscale3).exp()

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        hidden = x @ self.weight1.T
        self._normalise(hidden, self.shift1, self.logscale1)
        hidden = torch.relu((hidden + self.shift1) * (LOGSCALE_FACTOR * self.logscale1).exp())
        self._normalise(hidden @ self.weight2.T, self.shift2, self.logscale2)

    @staticmethod
    def _normalise(x: Tensor, shift: Tensor, logscale: Tensor) -> None:
        shift.copy_(-x.mean(dim=0))
        logscale.copy_(-(x.std(dim=0, correction=0) + 1e-6).log() / LOGSCALE_FACTOR)


class Coupling(nn.Module):
    """A map that changes the second half of the channels by a net g of the first: ``outputs`` values a channel."""

    outputs: int

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.kept = channels // 2
        self.net = CouplingNet(self.kept, width, self.outputs * self.kept)


class AdditiveCoupling(Coupling):
    """[y1, y2] -> [y1, y2 + g(y1)]; log-det 0."""

    outputs = 1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, changed = x[:, : self.kept], x[:, self.kept :]
        return torch.cat([kept, changed + self.net(kept)], dim=1), x.new_zeros(())


class AffineCoupling(Coupling):
    """[y1, y2] -> [y1, (y2 + m) * r], o = g(y1), m = o[0::2], r = sigmoid(o[1::2] + 2); log-det = sum(log r)."""

    outputs = 2

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, changed = x[:, : self.kept], x[:, self.kept :]
        out = self.net(kept)
        shift, gate = out[:, 0::2], out[:, 1::2] + 2.0
        log_det = nn.functional.logsigmoid(gate).sum(dim=1)
        return torch.cat([kept, (changed + shift) * torch.sigmoid(gate)], dim=1), log_det


COUPLINGS: dict[str, type[Coupling]] = {"additive": AdditiveCoupling, "affine": AffineCoupling}


def make_permutation(kind: str, channels: int) -> Permutation | LUPermutation:
    """Make the mixing of channels: reversal (the paper's), random or lu (learned)."""
    if kind == "lu":
        return LUPermutation(channels)
    if kind == "random":
        return Permutation(torch.randperm(channels), derived=False)
    return Permutation(torch.arange(channels - 1, -1, -1), derived=True)


@dataclass(frozen=True)
class FlowConfig:
    """The shape of a flow, by default the paper's (appendix B, table 7); raises a UsageError for a wrong ``dim``."""

    dim: int
    levels: int = DEFAULTS.levels
    depth: int = SMALL["depth"]
    width: int = SMALL["width"]
    coupling: str = DEFAULTS.coupling
    permutation: str = DEFAULTS.permutation

    def __post_init__(self) -> None:
        if self.dim < 1 or self.dim % 2**self.levels:
            raise refuse(
                f"a flow of {self.levels} levels needs a width divisible by {2**self.levels}, and the embeddings have "
                f"{self.dim} dimensions; use fewer {{levels}}"
            )


class FlowStep(nn.Module):
    """One step: ActNorm, permutation and coupling."""

    def __init__(self, channels: int, config: FlowConfig) -> None:
        super().__init__()
        self.actnorm = ActNorm(channels)
        self.permutation = make_permutation(config.permutation, channels)
        self.coupling = COUPLINGS[config.coupling](channels, config.width)
        self.constant: tuple[Tensor, Tensor, Tensor] | None = None  # constant channels, shifts, net outputs

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, log_det = self.actnorm(x)
        x, log_det_permutation = self.permutation(x)
        x, log_det_coupling = self.coupling(x)
        return x, log_det + log_det_permutation + log_det_coupling

    @torch.no_grad()
    def initialise(self, x: Tensor, constant: Tensor) -> tuple[Tensor, Tensor]:
        """Set the ActNorms from ``x`` (B, C) with constant channels ``constant`` (C,); returns both after the step."""
        constant = self.actnorm.initialise(x, constant)
        x, _ = self.permutation(self.actnorm(x)[0])
        if isinstance(self.permutation, LUPermutation):  # a learned mix has no constant channel
            after = torch.zeros_like(constant)
        else:
            after = constant[self.permutation.index]
        if constant.any():
            changed = after[self.coupling.kept :].repeat_interleave(self.coupling.outputs)
            self.constant = constant, self.actnorm.shift[constant].clone(), changed
        self.coupling.net.initialise(x[:, : self.coupling.kept])
        return self.coupling(x)[0], after

    @torch.no_grad()
    def hold(self) -> None:
        """Reset the parameters of constant channels, for which the likelihood has no maximum."""
        if self.constant is None:
            return
        channels, shift, outputs = self.constant
        self.actnorm.shift[channels], self.actnorm.logscale[channels] = shift, 0.0
        for parameter in (self.coupling.net.weight3, self.coupling.net.bias3, self.coupling.net.logscale3):
            parameter[outputs] = 0.0


class Flow(nn.Module):
    """A map from pooled embeddings to a standard Gaussian."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.levels = nn.ModuleList(
            nn.ModuleList(FlowStep(config.dim >> level, config) for _ in range(config.depth))
            for level in range(config.levels)
        )

    def steps(self, level: int) -> list[FlowStep]:
        return list(cast("list[FlowStep]", self.levels[level]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (B, C) to z (B, C) and log|det dz/dx| (B,)."""
        log_det = x.new_zeros(len(x))
        emitted = []
        for level in range(self.config.levels):
            if level:
                x, out = x.chunk(2, dim=1)
                emitted.append(out)
            for step in self.steps(level):
                x, step_log_det = step(x)
                log_det = log_det + step_log_det
        return torch.cat([*emitted, x], dim=1), log_det

    def log_prob(self, x: Tensor) -> Tensor:
        """Compute log N(z; 0, I) + log|det dz/dx| (B,), in nats (paper, equation 3)."""
        z, log_det = self(x)
        return log_det - 0.5 * (z.square().sum(dim=1) + self.config.dim * math.log(2 * math.pi))

    def bits_per_dimension(self, x: Tensor) -> Tensor:
        """Compute the mean of -log p(x) / (C ln 2)."""
        return -self.log_prob(x).mean() / (self.config.dim * math.log(2))

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Set every ActNorm from ``x`` (B, C), and centre constant channels; raises if all are constant."""
        constant = torch.zeros(x.shape[1], dtype=torch.bool)
        for level in range(self.config.levels):
            if level:
                x, constant = x.chunk(2, dim=1)[0], constant.chunk(2)[0]
            for step in self.steps(level):
                x, constant = step.initialise(x, constant)

    def hold(self) -> None:
        for level in range(self.config.levels):
            for step in self.steps(level):
                step.hold()
