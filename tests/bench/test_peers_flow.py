"""The peers of the flow compute what training computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers import port as peers_port
from fastflow.bench.peers.folded import folded, folded_state
from fastflow.bench.suites.workloads import synthetic
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage

from support.benches import trained

SHAPES = [
    (96, 3, 3, 32, "additive", "reversal"),
    (40, 1, 2, 7, "additive", "reversal"),
    (48, 2, 4, 17, "additive", "random"),
    (48, 2, 2, 8, "additive", "lu"),
    (96, 2, 3, 9, "affine", "reversal"),
    (32, 4, 1, 5, "affine", "random"),
]


def peers_of(stages: tuple[Stage, ...], dim: int) -> dict:
    plans = fold(stages, dim)
    built = {
        "port": peers_port.port(stages, "cpu"),
        "lean": peers_flow.lean(stages, "cpu"),
        "folded": folded(plans, "cpu"),
        "folded_state": folded_state(plans, "cpu"),
    }
    return {name: function for name, function in built.items() if function is not None}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_peers_compute_the_training_flow(shape):
    stage, module = trained(*shape)
    dim, coupling, permutation = shape[0], shape[4], shape[5]
    peers = peers_of((stage,), dim)
    assert ("port" in peers) == ((coupling, permutation) == ("additive", "reversal"))
    assert ("folded_state" in peers) == (coupling == "additive" and permutation != "lu")
    for batch in (0, 1, 3, 17):
        x = torch.randn(batch, dim, generator=torch.Generator().manual_seed(batch)) * 2 + 1
        with torch.inference_mode():
            unfused = module.float()(x)[0].double()
            exact = module.double()(x.double())[0]
            allowed = 2 * float((unfused - exact).abs().sum()) / max(1, exact.numel()) + 2e-6
            for name, peer in peers.items():
                z = peer(x.clone())
                assert z.shape == exact.shape, name
                assert z.dtype == torch.float32, name
                assert bool(torch.isfinite(z).all()), name
                assert float((z - exact).abs().sum()) / max(1, exact.numel()) <= allowed, name


def test_peers_take_chains():
    rng = np.random.default_rng(1)
    stage, _ = trained(32, 2, 2, 8, "additive", "reversal")
    matrix = np.linalg.qr(rng.standard_normal((50, 32)))[0]
    whiten = Stage("whiten", {}, {"mean": rng.standard_normal(50).astype("f"), "matrix": matrix.astype("f")})
    scale = Stage("standardize", {}, {"mean": np.ones(32, "f"), "deviation": rng.uniform(1, 2, 32).astype("f")})
    x = torch.from_numpy(rng.standard_normal((9, 50)).astype("f"))
    for stages in ((whiten, stage), (whiten, scale), (whiten, stage, scale)):
        exact = peers_flow.unfused(stages, "cpu", torch.float64)(x)
        peers = peers_of(stages, 50)
        assert "port" not in peers
        for name, peer in peers.items():
            assert float((peer(x) - exact).norm() / exact.norm()) <= 2e-6, name


def test_operations_are_counted_as_dispatched():
    subject = synthetic(3, 3, 32, "additive", 4, dim=96)
    x = torch.from_numpy(subject.x)
    counts = {
        name: peers_flow.count_operations(peer, x)
        for name, peer in (
            peers_of(subject.stages, 96) | {"equations": peers_flow.unfused(subject.stages, "cpu", torch.float32)}
        ).items()
    }
    assert counts["lean"] == (82, 0)
    assert counts["folded_state"] == (48, 0)
    assert counts["port"][1] == 36  # three flags a step and three argument checks for each of three priors
    assert counts["port"][0] > 300
    assert counts["folded"][0] < counts["lean"][0] < counts["equations"][0] < counts["port"][0]
