"""Ratios of the flow: each bound to the form it is of."""

from __future__ import annotations

import pytest

from fastflow.bench.report.ratios_flow import flow_ratios


def row(name: str, batch: int, ms: float, threads: int = 1, subject: str = "s") -> dict:
    return {
        "suite": "flow", "subject": subject, "name": name, "batch": batch, "threads": threads, "median_ms": ms,
        "times_floor": ms * 100,
    }  # fmt: skip


def test_ratios_put_each_bound_to_each_form():
    rows = [
        *(row("fastflow", 1, 0.01), row("torch-lean-eager", 1, 0.39), row("torch-ukp-eager", 1, 4.0)),
        *(
            row("torch-folded-eager", 1, 0.2),
            row("torch-folded-state-eager", 1, 0.05),
            row("torch-lean-compile", 1, 0.04),
        ),
        *(row("fastflow", 1024, 0.03), row("torch-lean-eager", 1024, 0.15), row("fastflow", 1, 0.02, threads=2)),
        row("fastflow", 1, 99.0, subject="another"),
    ]
    entries = {
        (r["name"].partition(": fastflow ")[2], r["name"][:9], r["threads"]): r for r in flow_ratios(rows, "cpu")
    }
    lean = entries["against unfused PyTorch eager, lean (torch-lean-eager)", "flow B=1:", 1]
    assert (lean["value"], lean["must"], lean["reached"]) == (pytest.approx(39), 40, False)
    by_peer = {
        name[name.index("(") + 1 : -1]: r for (name, b, t), r in entries.items() if "(" in name and b == "flow B=1:"
    }
    assert by_peer["torch-ukp-eager"]["reached"] is True
    assert by_peer["torch-folded-eager"]["reached"] is True
    assert by_peer["torch-folded-state-eager"]["value"] == pytest.approx(5)
    assert by_peer["torch-lean-compile"]["must"] is None  # the fastest of all, for information
    assert by_peer["torch-lean-compile"]["value"] == pytest.approx(4)
    times = [r for r in flow_ratios(rows, "cpu") if r["unit"] == "us"]
    assert [(r["threads"], r["value"], r["reached"]) for r in times] == [
        (1, pytest.approx(10), True),
        (2, pytest.approx(20), False),
    ]
    floor = [r for r in flow_ratios(rows, "cpu") if r["unit"] == "x floor"]
    assert [(r["value"], r["reached"]) for r in floor] == [(pytest.approx(3), False)]
    assert flow_ratios([row("torch-lean-eager", 1, 1.0)], "cpu") == []
    assert any(r["aim"] == 40 for r in flow_ratios(rows, "cuda"))
