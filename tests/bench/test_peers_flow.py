"""The peers of the flow compute what training computed, in few products."""

import numpy as np
import pytest
import torch

from fastflow.bench.peers import flow as peers_flow
from fastflow.bench.peers import port as peers_port
from fastflow.bench.peers.folded import chain, folded, folded_state, groups
from fastflow.bench.suites.workloads import synthetic
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
    plans = fold(stages, dim)
    built = {"port": peers_port.port(stages, "cpu"), "lean": peers_flow.lean(stages, "cpu")}
    built |= {"folded": folded(plans, "cpu"), "folded_state": folded_state(plans, "cpu")}
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
    equations = peers_flow.unfused(subject.stages, "cpu", torch.float32)
    peers = peers_of(subject.stages, 96) | {"equations": equations}
    counts = {name: peers_flow.count_operations(peer, torch.from_numpy(subject.x)) for name, peer in peers.items()}
    assert counts["lean"] == (82, 0)
    assert counts["folded_state"] == (48, 0)
    assert counts["port"][1] == 36  # three flags a step and three argument checks for each of three priors
    assert counts["port"][0] > 300
    assert counts["folded"][0] < counts["lean"][0] < counts["equations"][0] < counts["port"][0]


@pytest.mark.parametrize("coupling", ["additive", "affine", "sparse"])
def test_both_forms_execute_the_plan(coupling):
    """Sparse: in place, followed by a matrix."""
    rng = np.random.default_rng(4)
    if coupling == "sparse":
        plans = fold([make.flow(rng, 24, 2, 2, 5), make.recolour(rng, 24)], 24, sparse=True)
        assert [plan.form for plan in plans] == ["state", "hidden"]
        assert folded_state(plans[1:], "cpu") is None
    else:
        plans = fold([make.standardize(rng, 24), make.flow(rng, 24, 2, 2, 5, coupling)], 24)
    x = want = rng.normal(size=(7, 24))
    for plan in plans:
        want = execute(plan, want)
    forms = [folded(plans, "cpu"), folded_state(plans, "cpu")]
    assert (forms[1] is None) == (coupling == "affine"), "an affine flow is in state form already"
    for form in filter(None, forms):
        assert np.abs(form(torch.from_numpy(x).float()).numpy() - want).max() <= 1e-4 * np.abs(want).max()


def test_steps_of_one_range_are_one_product():
    assert groups(np.array([[0, 8], [0, 8], [4, 8], [4, 8], [6, 8]])) == [
        (range(0, 2), slice(0, 8)), (range(2, 4), slice(4, 8)), (range(4, 5), slice(6, 8)),
    ]  # fmt: skip
    assert groups(np.array([[0, 4], [0, 8]])) == [(range(0, 2), slice(0, 8))], "the later one needs it all"
    assert groups(np.zeros((0, 2), int)) == []


def test_a_chain_is_its_parts_in_order():
    double, add = (lambda x: 2 * x), (lambda x: x + 1)
    assert chain([double, add])(torch.tensor(3.0)) == 7
    assert chain([add, double])(torch.tensor(3.0)) == 8
    assert chain([add]) is add


def test_the_port_computes_the_loss_it_is_charged_for():
    stage, module = trained(96, 3, 3, 32, "additive", "reversal")
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(0))
    loss = peers_port.Port(stage, "cpu").with_loss(x)[1]
    with torch.no_grad():
        assert float(loss) == pytest.approx(float(module.bits_per_dimension(x)), rel=1e-4)
