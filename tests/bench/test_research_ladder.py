"""The kernel ladder: its plain steps compute the flow, its builds can be made, docs/kernels.md shows its figures."""

import json
import shutil

import click
import numpy as np
import pytest
import torch
from places import ROOT

from fastflow.bench.measure.timing import Effort
from fastflow.bench.peers.flow import unfused
from fastflow.bench.suites.workloads import synthetic
from fastflow.model.tokens import Tokens

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")

from fastflow.bench.research import ladder_builds, ladder_encoder, ladder_naive, ladder_page, ladder_rows

ONCE = Effort(budget_s=0, min_runs=1, max_runs=1, sample_s=0, pause_s=0)


@pytest.fixture(scope="module")
def work():
    return synthetic(2, 3, 5, "additive", 4, dim=24)


def exact(work):
    return unfused(work.stages, "cpu", torch.float64)(torch.from_numpy(work.x)).numpy()


def test_loops_in_python_are_the_flow(work):
    z = ladder_naive.in_python(work.stages[0])(work.x)
    assert np.allclose(z, exact(work), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_loops_in_c_are_the_flow(work):
    steps = ladder_naive.in_c(work.stages[0], work.plans[0])
    assert set(steps) == {step for step in ladder_page.FLOW if "in C" in step}
    for name, step in steps.items():
        assert np.allclose(step(work.x), exact(work), rtol=1e-5, atol=1e-5), name
    assert np.array([1e-310]) * 1 > 0, "the loops leave the process its subnormal numbers"


@pytest.mark.parametrize("name", ladder_builds.BUILDS)
def test_every_change_of_a_build_finds_its_text_once(name):
    for file, text, other in ladder_builds.BUILDS[name]:
        assert (ROOT / "kernels" / file).read_text(encoding="utf-8").count(text) == 1, text
        assert text != other


def test_lengthened_texts_are_as_long_as_the_longest_of_their_batch():
    texts = Tokens(np.arange(6, dtype=np.int32), np.array([0, 1, 4, 6]), np.zeros(0, np.int64))
    first, second = ladder_encoder.lengthened(texts, np.array([2, 0, 1]), size=2)
    assert (first.ids.tolist(), first.offsets.tolist()) == ([4, 5, 0, 0], [0, 2, 4])
    assert (second.ids.tolist(), second.offsets.tolist()) == ([1, 2, 3], [0, 3])


def test_a_build_that_changes_a_result_stops_the_study():
    shipped = np.ones((2, 3), np.float32)
    results = {"as shipped, int8": shipped, "without groups, int8": shipped.copy(), "NumPy, float32": shipped + 1}
    ladder_rows.same_bits(results)
    results["without groups, int8"][0, 0] += 1e-6
    with pytest.raises(click.ClickException, match="without groups, int8: the result differs"):
        ladder_rows.same_bits(results)


def test_gains_are_over_the_shipped_kernel_of_the_same_dtype(monkeypatch):
    monkeypatch.setattr(ladder_rows, "processor_watch", lambda call, calls: call() * calls)
    seconds = {"as shipped, float32": 4.0, "as shipped, int8": 1.0, "without groups, int8": 1.5, "NumPy, float32": 8.0}
    calls = {name: lambda value=value: value for name, value in seconds.items()}
    details = {name: {"dtype": name.rpartition(", ")[2]} for name in list(seconds)[:3]}
    rows = ladder_rows.timed(calls, ONCE, details, ladder="encoder", batch=8)
    assert {row["step"]: row["gain"] for row in rows} == {
        "as shipped, float32": 1.0, "as shipped, int8": 1.0, "without groups, int8": 1.5, "NumPy, float32": 2.0,
    }  # fmt: skip
    assert {(row["ladder"], row["batch"], row["runs"]) for row in rows} == {("encoder", 8, 1)}


@pytest.mark.parametrize("table", ["flow", "encoder", "left out", "padding"])
def test_the_page_shows_the_kept_measurements(table):
    kept = json.loads(ladder_page.KEPT.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert ladder_page.tables(kept)[table] in page
