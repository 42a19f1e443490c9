"""Plots of kept results, and of none."""

import json

import pytest

from fastflow.bench.report.plot import plot
from fastflow.errors import FastflowError

from support.places import ROOT

KEPT = ROOT / "bench" / "results"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zen4/flow", "zen4/encoder-bert-base"])
def test_kept_results_are_drawn(tmp_path, name):
    pytest.importorskip("matplotlib")
    plot(json.loads((KEPT / f"{name}.json").read_text()), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


def test_nothing_is_not_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(FastflowError, match="nothing was measured"):
        plot({"rows": []}, tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []
