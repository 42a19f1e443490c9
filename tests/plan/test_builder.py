"""The ranges and forms of a plan: the supports of its arrays, and where a step reads and writes."""

import numpy as np
import pytest
from hypothesis import given, settings

from fastflow.kernels.flow.plan import UNTOUCHED
from fastflow.plan.fold import fold

from support import stages as make


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(make.chains())
def test_ranges_are_the_supports(chain):
    for plan in fold(chain.stages, chain.dim):
        w = plan.width
        for k in range(plan.steps):
            own = slice(k * w, (k + 1) * w)
            for matrix, axis, table in ((plan.U[own], 0, plan.reads), (plan.V[:, own], 1, plan.writes)):
                support = np.flatnonzero((matrix != 0).any(axis=axis))
                assert (support[0], support[-1] + 1) == tuple(table[k])
            if plan.form == "hidden":
                assert not plan.G[own, k * w :].any()
                continue
            assert plan.G is None
            outside = np.ones(plan.state, bool)
            outside[slice(*plan.writes[k])] = False
            assert not plan.R[outside, own].any()
            assert not plan.p[k, outside].any()
            assert (plan.q[k, outside] == UNTOUCHED).all()


TABLES = {
    2: (
        [(384, 768), (0, 384), (384, 768), (384, 576), (576, 768), (384, 576)],
        [(0, 384), (384, 768), (0, 384), (576, 768), (384, 576), (576, 768)],
        [[], [0], [1], [1], [1, 3], [1, 4]],
        [*range(383, -1, -1), *range(384, 768)],
    ),
    3: (
        [(384, 768), (0, 384), (384, 768), (384, 576), (576, 768), (384, 576), (480, 576), (384, 480), (480, 576)],
        [(0, 384), (384, 768), (0, 384), (384, 576), (576, 768), (384, 576), (672, 768), (576, 672), (672, 768)],
        [[], [0], [1], [1], [1, 3], [1, 4], [1, 4], [1, 4, 6], [1, 4, 7]],
        [*range(383, -1, -1), *range(576, 768), *range(575, 383, -1)],
    ),
}


@pytest.mark.parametrize("levels", TABLES)
def test_the_ranges_of_the_papers_flow(levels):
    (plan,) = fold([make.flow(np.random.default_rng(0), 768, levels)], 768)
    reads, writes, links, gather = TABLES[levels]
    assert plan.reads.tolist() == [list(r) for r in reads]
    assert plan.writes.tolist() == [list(r) for r in writes]
    assert [np.flatnonzero(row).tolist() for row in plan.links] == links
    assert plan.gather.tolist() == gather


@pytest.mark.parametrize("levels", TABLES)
def test_the_state_form_writes_where_the_next_step_reads(levels):
    (plan,) = fold([make.flow(np.random.default_rng(0), 768, levels, coupling="affine")], 768)
    physical = [
        [(0, 384), (384, 768), (0, 384)],
        [(576, 768), (384, 576), (576, 768)],
        [(384, 480), (480, 576), (384, 480)],
    ]
    assert plan.writes.tolist() == [list(r) for level in physical[:levels] for r in level]
    assert plan.gather.tolist() == TABLES[levels][3]
