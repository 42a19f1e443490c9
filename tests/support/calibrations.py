"""Flows of PyTorch and linear stages, small and well conditioned."""

import itertools

import numpy as np
import torch

from fastflow.train.export.export import export
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.options import parse_method
from fastflow.transforms.calibration import Stage

from support import stages

DIM = 16
SHAPE = {"levels": 2, "depth": 2, "width": 8, "coupling": "additive", "permutation": "reversal"}


FLOWS = list(itertools.product(("additive", "affine"), ("reversal", "random", "lu"), ((1, 1), (2, 3), (4, 2))))


def make_flow(coupling="additive", permutation="reversal", shape=(2, 3), width=6) -> Flow:
    torch.manual_seed(0)
    flow = Flow(FlowConfig(DIM, *shape, width, coupling, permutation))
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            parameter.add_(
                (0.02 if "log" in name or "lower" in name or "upper" in name else 0.2) * torch.randn_like(parameter)
            )
            if "logscale" in name:
                parameter.mul_(0.3)
    return flow


def pooled(rows: int, dtype=np.float64):
    return np.random.default_rng(rows).normal(0.3, 1.2, (rows, DIM)).astype(dtype)


def linear_stages() -> list[Stage]:
    rng = np.random.default_rng(1)
    return [stages.standardize(rng, DIM), stages.nullspace(rng, DIM), stages.whiten(rng, DIM, 12)]


def fitted_by(method, pooled, **shape):
    return fit_chain(parse_method(method), pooled, {**SHAPE, **shape}, Training(Schedule(batch_size=32, lr=1e-3)))


def write(out, encoder, fitted, sentences):
    return export(out, encoder, fitted, {"texts": len(sentences)}, "# Card\n", sentences)
