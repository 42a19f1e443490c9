"""Fused calibrations on real pooled embeddings, as they are and with outlier dimensions such as BERT's."""

import numpy as np
import pytest

import fastflow
from fastflow.model.artifact import load_model
from fastflow.plan.fold import fold
from fastflow.stages import calibration

from support.builders import fitted
from support.places import ROOT
from support.tolerances import FLOW_FLOOR, FUSED_FACTOR

cpu = pytest.importorskip("fastflow.kernels.flow.cpu", reason="the compiled extension was not built")
instructions = pytest.importorskip("fastflow.kernels.isa", reason="the compiled extension was not built")
TEXTS = (ROOT / "examples" / "novels.txt").read_text(encoding="utf-8").split("\n")[:300]
FITTED = (
    "flow",
    "nullspace:10",
    "nullspace:10,flow",
    "components:3",
    "components:3,flow",
    "flow,nullspace:5",
    "flow,recolour",
    "whiten,recolour",
    "whiten:64",
)


@pytest.fixture(scope="module")
def pooled():
    return fastflow.Runtime().pool(TEXTS)  # means of word embeddings, which span 255 of 256 dimensions


def relative(z, exact):
    assert np.isfinite(z).all()
    return np.linalg.norm(z - exact) / np.linalg.norm(exact)


@pytest.fixture(scope="module")
def calibrations(pooled):
    """By name, fitted on the pooled texts; the model in the package has its own."""
    return {name: fitted(name, pooled) for name in FITTED} | {"in the package": load_model().calibration}


@pytest.mark.parametrize("outlier", [1.0, 30.0], ids=["as pooled", "outlier dimensions"])
@pytest.mark.parametrize("isa", instructions.usable_isas())
@pytest.mark.parametrize("name", ["in the package", *FITTED])
def test_no_more_than_twice_the_unfused_error(pooled, calibrations, name, isa, outlier):
    x = pooled.copy()
    x[:, [7, 100]] = x[:, [7, 100]] * outlier  # two dominant channels, as BERT-base has
    stages = calibrations[name]
    wide = calibration.apply([s.astype(np.float64) for s in stages], x.astype(np.float64))
    unfused = calibration.apply([s.astype(np.float32) for s in stages], x)
    for sparse in (False, True):
        plans = [plan.astype(np.float32) for plan in fold(stages, x.shape[1], sparse)]
        fused = cpu.CpuFlow(plans, isa=isa)(x)
        assert relative(fused, wide) <= FUSED_FACTOR * relative(unfused, wide) + FLOW_FLOOR, sparse
