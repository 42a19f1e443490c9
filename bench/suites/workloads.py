"""The workloads of the flow suite: a calibration, its plans, and pooled vectors.

Without a model: flows with weights like trained ones, on vectors with the outlier dimensions of a pooled BERT. Only
errors depend on the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.bench.suites.texts import real_texts
from fastflow.errors import UsageError
from fastflow.kernels.flow import Plan
from fastflow.model.artifact import load_model
from fastflow.plan import fold
from fastflow.plan.linear import products
from fastflow.runtime import Runtime
from fastflow.stages.calibration import Stage, describe
from fastflow.train.methods.closed_forms import fit_recolour, measure_joint
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.options import DEFAULTS

Floats = NDArray[np.float32]
OUTLIERS = ((0.40, -9.0, 1.2), (0.50, 5.0, 0.9), (0.80, -3.5, 0.8))  # position (share of D), mean, deviation


@dataclass(frozen=True)
class Workload:
    """A calibration under test; ``x`` (rows, D) float32 is repeated to fill larger batches."""

    label: str
    stages: tuple[Stage, ...]
    plans: tuple[Plan, ...]  # float64
    x: Floats
    inputs: str  # the source of x

    def flop(self) -> float:
        """Return the operations of a row; a multiply-add is two, zero blocks are not counted."""
        return sum(2.0 * (plan.inputs + products(plan)) + 2 * plan.outputs for plan in self.plans)

    def weight_bytes(self) -> float:
        """Return the float32 bytes of weights of one pass, without zero blocks."""
        vectors = sum(plan.inputs + 2 * plan.outputs + len(plan.c) + plan.d.size for plan in self.plans)
        return 4.0 * (vectors + sum(map(products, self.plans)))

    def traffic(self, batch: int) -> float:
        return 4.0 * batch * (self.plans[0].inputs + self.plans[-1].outputs) + self.weight_bytes()


def make_pooled_like(rows: int, dim: int, seed: int) -> Floats:
    """Make (rows, dim) vectors like pooled BERT states: 16 shared directions, three outliers."""
    rng = np.random.default_rng(seed)
    mean, deviation = 0.3 * rng.standard_normal(dim), 0.2 * np.exp(0.4 * rng.standard_normal(dim))
    shared = rng.standard_normal((16, dim)) / 4
    for position, outlier_mean, outlier_deviation in OUTLIERS:
        channel = int(position * dim)
        mean[channel], deviation[channel] = outlier_mean, outlier_deviation
    noise = rng.standard_normal((rows, dim), np.float32)
    noise += rng.standard_normal((rows, 16), np.float32) @ shared.astype(np.float32)
    return mean.astype(np.float32) + deviation.astype(np.float32) * noise


def make_trained_like(x: Floats, seed: int, **settings: Any) -> Stage:
    """Make a flow with ActNorms that fit ``x`` and last layers N(0, 0.05^2) instead of zero."""
    config = FlowConfig(x.shape[1], **settings)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        flow = Flow(config)
        flow.initialise(torch.from_numpy(x))
        for name, parameter in flow.named_parameters():
            if name.rsplit(".", 1)[1] in ("weight3", "bias3", "logscale3"):
                parameter.normal_(0, 0.05)
    return Stage("flow", dict(vars(config)), {name: array.numpy().copy() for name, array in flow.state_dict().items()})


def make_synthetic(
    levels: int, depth: int, width: int, coupling: str, rows: int, dim: int = 768, seed: int = 2020,
    recolour: bool = False,
) -> Workload:  # fmt: skip
    """Make a flow of the paper's shape on ``rows`` vectors of ``dim`` channels; with recolour if asked."""
    x = make_pooled_like(max(rows, 4096), dim, seed)
    stages = [make_trained_like(x[:4096], seed, levels=levels, depth=depth, width=width, coupling=coupling)]
    if recolour:
        stages.append(fit_recolour(measure_joint(stages, x[:4096]), dim, **DEFAULTS.colour))
    inputs = f"{rows} synthetic vectors with the outlier dimensions of a pooled BERT, seed {seed}; random weights"
    return Workload(f"{describe(stages)}, D={dim}", tuple(stages), fold(stages, dim), x[:rows], inputs)


def take_model(path: str | Path, rows: int) -> Workload:
    """Take the calibration at ``path``, on its pooled embeddings of ``rows`` sentences."""
    stages = load_model(path).calibration
    if not stages:
        raise UsageError(f"{path} has no calibration, so there is nothing to time; leave -m out for the paper's flow")
    texts, source = real_texts(rows)
    with Runtime(path, device="cpu") as runtime:
        x = np.ascontiguousarray(runtime.pool(texts), np.float32)
    dim = x.shape[1]
    inputs = f"the model's pooled embeddings of {source}: {len(texts)}, repeated in larger batches"
    return Workload(f"{describe(stages)}, D={dim}", tuple(stages), fold(stages, dim), x, inputs)
