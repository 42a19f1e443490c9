"""BERT-flow's normalizing flow (Li et al., EMNLP 2020, 3.2; the official ``glow_1x1.py``): Glow without squeezing.

A level runs ``depth`` steps, emits its second half of channels, and passes on the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from fastflow.errors import UsageError
from fastflow.train.methods.layers import COUPLINGS, ActNorm, LUPermutation, make_permutation
from fastflow.train.options import DEFAULTS, SMALL


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
            raise UsageError(
                f"a flow of {self.levels} levels needs a width divisible by {2**self.levels}, and the embeddings have "
                f"{self.dim} dimensions; use fewer --levels"
            )


class Step(nn.Module):
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
            nn.ModuleList(Step(config.dim >> level, config) for _ in range(config.depth))
            for level in range(config.levels)
        )

    def steps(self, level: int) -> list[Step]:
        return list(cast("list[Step]", self.levels[level]))

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
