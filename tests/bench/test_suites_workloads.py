"""Workloads: weights counted, sentences that differ."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fastflow.bench.suites.workloads import sentences, synthetic
from fastflow.plan.in_place import products


@pytest.mark.slow
@pytest.mark.parametrize(("coupling", "levels"), [("additive", 3), ("additive", 2), ("affine", 2)])
def test_counted_weights_are_the_plans_nonzero_blocks(coupling, levels):
    subject = synthetic(levels, 3, 32, coupling, 2, dim=768)
    for plan in (*subject.plans, *subject.sparse):
        arrays = [plan.U, plan.B, plan.V, plan.S] + [a for a in (plan.G, plan.R) if a is not None]
        assert products(plan) == sum(np.count_nonzero(array) for array in arrays)
    if (coupling, levels) == ("additive", 3):
        assert subject.flop() == pytest.approx(0.276e6, rel=0.02)
        assert subject.weight_bytes() == pytest.approx(0.55e6, rel=0.04)
    assert subject.traffic(10) == subject.weight_bytes() + 10 * 2 * 768 * 4


def test_sentences_differ():
    made = sentences(3072)
    assert len(set(made)) == 3072
    assert all(a != b for a, b in pairwise(made))
