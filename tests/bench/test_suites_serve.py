"""The serve suite on a model so small that it ends at once: real servers, a real generator."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from fastflow.bench.suites import serve
from fastflow.bench.suites.sizes import QUICK, ServeSizes
from fastflow.bench.suites.workbench import Workbench
from fastflow.errors import FastflowError


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
def test_every_load_has_its_row(tmp_path, model):
    sizes = replace(
        QUICK, serve=ServeSizes(texts=64, shares=(0.1, 3.0), seconds=0.2, lead=0.1, most=60, connections=40)
    )
    said = []
    results = serve.run_serve(Workbench(tmp_path, str(model)), ["torch-eager"], sizes, 1, said.append)
    assert [(row["name"], row["batch"], row["share"]) for row in results.rows] == [
        ("Runtime alone", 64, None),
        ("Runtime alone", 1, None),
        ("fastflow", 1, 0.1),
        ("fastflow", 1, 3.0),
        ("fastflow", 32, 1.3),
    ]
    for row in results.rows[2:]:
        assert row["runs"] + row["refused"] + row["failed"] > 0
        assert row["generator_cpu"] > 0
    assert results.rows[2]["runs"] >= 10
    assert results.rows[4]["resident_mb"] > 10
    assert any("lists" in ratio["name"] for ratio in results.ratios)
    assert len(said) == 4


def test_a_server_that_does_not_start_says_why():
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')", "serve"]
    with pytest.raises(FastflowError, match="no such model"), serve._server(command):
        pass
