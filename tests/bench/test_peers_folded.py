"""The folded calibration in PyTorch: the plan's own result in either form, and few products."""

import numpy as np
import pytest
import torch

from fastflow.bench.peers.folded import chain, folded, folded_state, groups
from fastflow.kernels.flow.plan import execute
from fastflow.plan.fold import fold

from support import stages as make


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_both_forms_execute_the_plan(coupling):
    rng = np.random.default_rng(4)
    plans = fold([make.standardize(rng, 24), make.flow(rng, 24, 2, 2, 5, coupling)], 24)
    x = rng.normal(size=(7, 24))
    want = x
    for plan in plans:
        want = execute(plan, want)
    given = torch.from_numpy(x).float()
    forms = [folded(plans, "cpu"), folded_state(plans, "cpu")]
    assert (forms[1] is None) == (coupling == "affine"), "an affine flow is in state form already"
    for form in filter(None, forms):
        assert np.abs(form(given).numpy() - want).max() <= 1e-4 * np.abs(want).max()


def test_the_sparse_plans_of_a_flow_with_a_matrix_behind():
    rng = np.random.default_rng(5)
    plans = fold([make.flow(rng, 24, 2, 2, 5), make.recolour(rng, 24)], 24, sparse=True)
    assert [plan.form for plan in plans] == ["state", "hidden"]
    x = rng.normal(size=(7, 24))
    want = execute(plans[1], execute(plans[0], x))
    for form in (folded(plans, "cpu"), folded_state(plans, "cpu")):
        assert np.abs(form(torch.from_numpy(x).float()).numpy() - want).max() <= 1e-4 * np.abs(want).max()
    assert folded_state(plans[1:], "cpu") is None


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
