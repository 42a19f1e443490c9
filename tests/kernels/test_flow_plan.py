"""Executing a plan in NumPy: the log-determinant, no rows, no stage."""

import numpy as np
import pytest

from fastflow.kernels.flow.plan import execute, execute_with_log_det
from fastflow.plan.fold import fold
from fastflow.stages.calibration import apply_with_log_det

from support import stages as make
from support.tolerances import FOLDED


def run(plans, x):
    for plan in plans:
        x = execute(plan, x)
    return x


def test_no_stage_is_the_identity():
    (plan,) = fold([], 24)
    x = np.random.default_rng(0).normal(size=(3, 24)).astype(np.float32)
    assert np.array_equal(execute(plan.astype(np.float32), x), x)
    assert plan.logdet == 0


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("permutation", ["reversal", "random", "lu"])
def test_the_log_determinant(coupling, permutation):
    rng = np.random.default_rng(3)
    stage = make.flow(rng, 48, 2, 2, 16, coupling, permutation)
    x = rng.normal(size=(9, 48))
    expected = apply_with_log_det(stage, x)[1]
    total = np.zeros(9)
    for plan in fold([stage], 48):
        x, log_det = execute_with_log_det(plan, x)
        total = total + log_det
    assert np.abs(total - expected).max() <= FOLDED * np.abs(expected).max()
    assert (np.ptp(total) == 0) == (coupling == "additive")


def test_the_log_determinant_of_linear_stages():
    rng = np.random.default_rng(4)
    square = make.whiten(rng, 24, 24)
    (plan,) = fold([make.standardize(rng, 24), square], 24)
    jacobian = run([plan], np.eye(24)) - run([plan], np.zeros((1, 24)))
    assert plan.logdet == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-10)
    assert np.isnan(fold([make.whiten(rng, 24, 8)], 24)[0].logdet)
    assert np.isnan(fold([make.nullspace(rng, 24)], 24)[0].logdet)


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_no_rows(coupling):
    (plan,) = fold([make.flow(np.random.default_rng(0), 16, coupling=coupling)], 16)
    z, log_det = execute_with_log_det(plan, np.zeros((0, 16)))
    assert z.shape == (0, 16)
    assert log_det.shape == (0,)
