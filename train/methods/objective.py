"""The paper's objective and AdamW."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fastflow.train.methods.flow import Flow

CLIP = 1.0  # global gradient norm
BETAS, EPS, DECAY = (0.9, 0.999), 1e-6, 0.01
SIDES = 2.0  # two sides of a pair


def compute_loss(flow: Flow, x: Tensor) -> Tensor:
    """Compute a step's loss on (b, D): twice the mean bits per dimension.

    The official code sums the means of both sides of pairs; clipping and eps depend on that scale.
    """
    return SIDES * flow.bits_per_dimension(x)


class PaperAdamW:
    """The official ``optimization_bert_flow.py``: Adam with decoupled decay and **no bias correction**.

    m <- 0.9 m + 0.1 g; v <- 0.999 v + 0.001 g^2; theta <- theta - lr (m / (sqrt(v) + 1e-6) + 0.01 theta), after
    clipping g to global norm 1. Early steps are 3 to 6 times those of a corrected Adam; decay reaches every parameter.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters = list(parameters)
        self.lr = lr
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> float:
        """Clip, update and clear the gradients; returns the norm before clipping."""
        norm = float(nn.utils.clip_grad_norm_(self.parameters, CLIP))
        for p, m, v in zip(self.parameters, self.first, self.second, strict=True):
            if p.grad is None:
                continue
            m.mul_(BETAS[0]).add_(p.grad, alpha=1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])
            p.mul_(1 - self.lr * DECAY).addcdiv_(m, v.sqrt().add_(EPS), value=-self.lr)
            p.grad = None
        return norm
