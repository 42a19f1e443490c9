"""The candidates of the flow: rows to the last one, and few of them in a quick run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastflow.bench.measure.compare import Candidate, Errors, checked
from fastflow.bench.suites import candidates_flow
from fastflow.bench.suites.workloads import synthetic
from fastflow.errors import FastflowError


def test_rows_repeat_and_pieces_cover_the_tail():
    subject = synthetic(1, 1, 4, "additive", 5, dim=8)
    assert np.array_equal(subject.rows(3), subject.x[:3])
    assert np.array_equal(subject.rows(12), np.concatenate([subject.x, subject.x, subject.x[:2]]))
    x, out = torch.arange(22.0).view(11, 2), torch.full((11, 2), -1.0)
    assert torch.equal(candidates_flow.in_pieces(lambda part: part * 2, x, out, 4), x * 2)
    exact = np.random.default_rng(2).standard_normal((5, 3))
    candidate, scale = Candidate("last", "float32", "torch", lambda x, out: lambda: x), Errors(1e-7, 1e-7)
    z = exact[np.arange(12) % 5].astype(np.float32)
    assert checked(candidate, z, exact, scale).max_abs <= 1e-6
    z[11, 2] += 1
    with pytest.raises(FastflowError, match="last"):
        checked(candidate, z, exact, scale)


def test_quick_runs_compile_nothing_and_families_pick_their_rows():
    assert not any("compile" in name for name in candidates_flow.chosen(None, "cpu", quick=True))
    assert candidates_flow.chosen(["lean"], "cpu", quick=False) == {"torch-lean-eager", "torch-lean-compile"}
    assert "torch-lean-graph" in candidates_flow.chosen(["torch-lean"], "cuda", quick=True)
    assert candidates_flow.chosen(["torch"], "cpu", quick=False) == {"torch-eager"}
