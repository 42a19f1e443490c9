"""The peers of the flow compute what training computed, in few products."""

import numpy as np
import pytest
import torch

from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers.flow import build_folded, call_in_turn
from fastflow.kernels.flow.plan import execute
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage

from support import stages as make
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
    built = {"lean": peers_flow.build_lean(stages, "cpu"), "folded": build_folded(fold(stages, dim), "cpu")}
    return {name: function for name, function in built.items() if function is not None}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_peers_compute_the_training_flow(shape):
    stage, module = trained(*shape)
    dim, permutation = shape[0], shape[5]
    peers = peers_of((stage,), dim)
    assert ("folded" in peers) == (permutation != "lu")
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
        exact = peers_flow.build_unfused(stages, "cpu", torch.float64)(x)
        peers = peers_of(stages, 50)
        for name, peer in peers.items():
            assert float((peer(x) - exact).norm() / exact.norm()) <= 2e-6, name


@pytest.mark.parametrize("coupling", ["additive", "affine", "sparse"])
def test_the_folded_form_executes_the_plan(coupling):
    """Sparse: in place, followed by a matrix."""
    rng = np.random.default_rng(4)
    if coupling == "sparse":
        plans = fold([make.flow(rng, 24, 2, 2, 5), make.recolour(rng, 24)], 24, sparse=True)
        assert [plan.form for plan in plans] == ["state", "hidden"]
    else:
        plans = fold([make.standardize(rng, 24), make.flow(rng, 24, 2, 2, 5, coupling)], 24)
    x = want = rng.normal(size=(7, 24))
    for plan in plans:
        want = execute(plan, want)
    z = build_folded(plans, "cpu")(torch.from_numpy(x).float()).numpy()
    assert np.abs(z - want).max() <= 1e-4 * np.abs(want).max()


def test_a_chain_is_its_parts_in_order():
    double, add = (lambda x: 2 * x), (lambda x: x + 1)
    assert call_in_turn([double, add])(torch.tensor(3.0)) == 7
    assert call_in_turn([add, double])(torch.tensor(3.0)) == 8
    assert call_in_turn([add]) is add
