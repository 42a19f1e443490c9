"""Methods fitted by name, to be compared with: seeded, and without PyTorch if it is not needed."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.errors import missing_extra
from fastflow.stages.calibration import apply
from fastflow.train.methods.against import fit_named


@pytest.mark.slow
def test_closed_forms_are_fitted_without_pytorch(run_python):
    program = """
import sys
sys.modules["torch"] = None
import numpy as np
from fastflow.stages.calibration import apply
from fastflow.train.methods.against import fit_named
x = np.random.default_rng(0).normal(size=(50, 6)) * np.arange(1, 7)
assert np.abs(np.cov(apply(fit_named("whiten:3", x), x), rowvar=False, ddof=0) - np.eye(3)).max() <= 1e-10
assert fit_named("raw", x) == []
assert apply(fit_named("nullspace:2", x), x).shape == (50, 6)
try:
    fit_named("flow", x)
except Exception as error:
    print(error)
"""
    done = run_python(program)
    assert done.stdout.strip() == str(missing_extra("train", "torch", "fitting 'flow'")), done.stderr


def test_fit_named_is_seeded():
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    first, again, other = (apply(fit_named("flow", x, seed), x.astype(np.float64)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
