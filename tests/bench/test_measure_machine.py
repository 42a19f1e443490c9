"""The machine: its ceilings, what others use of it, and nothing that names it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from fastflow.bench.measure.machine import Neighbours, ceilings, describe, peak_gflops

from support.benches import LIMITS


def test_floor_and_levels():
    assert [LIMITS.level(size) for size in (1e6, 2e6, 2e7)] == ["L2", "L3", "memory"]
    assert LIMITS.floor_ms(1e9, 1e6, 1e5) == pytest.approx(10.0)  # arithmetic
    assert LIMITS.floor_ms(1e3, 1e8, 1e8) == pytest.approx(10.0)  # memory


@pytest.mark.slow
def test_without_a_compiler_pytorch_stands_in_and_the_source_says_so(monkeypatch):
    monkeypatch.setattr("fastflow.bench.measure.probe.shutil.which", lambda name: None)
    monkeypatch.setattr("fastflow.bench.measure.machine.caches", lambda: {"L2": 256})
    found = ceilings([1], 0.005)[1]
    assert "no C compiler" in found.source
    assert set(found.gbs) == {"L2", "memory"}


def test_the_machine_is_described_without_names_or_paths():
    machine = describe()
    assert machine["processors_usable"] >= 1
    assert machine["versions"]["torch"] == torch.__version__
    assert str(Path.home()) not in json.dumps(machine)
    assert not any("host" in key or "node" in key for key in machine)


def test_what_others_use_is_what_we_do_not(monkeypatch):
    stat = ["cpu  100 10 20 900 5 1 1 3 0 0", "cpu  250 10 20 950 5 1 1 3 0 0"]  # hundredths of a second
    times = [(0.5, 0.0, 0.0, 0.0, 100.0), (0.6, 0.2, 0.1, 0.1, 102.0)]
    monkeypatch.setattr("fastflow.bench.measure.machine.content", lambda path: stat.pop(0))
    monkeypatch.setattr("fastflow.bench.measure.machine.os.times", lambda: os.times_result(times.pop(0)))
    monkeypatch.setattr("fastflow.bench.measure.machine.os.sysconf", lambda name: 100)
    assert Neighbours().processors() == pytest.approx((1.5 - 0.5) / 2)
    monkeypatch.undo()
    monkeypatch.setattr("fastflow.bench.measure.machine.content", lambda path: "")
    assert Neighbours().processors() is None


def test_the_peak_is_that_of_the_tiles_where_they_were_measured():
    found = {"fma_gflops": 100.0, "tiles_gflops": {"bfloat16": 1500.0, "int8": 3000.0}}
    assert [peak_gflops(found, dtype) for dtype in ("float32", "bfloat16", "int8")] == [100, 1500, 3000]
    for old in ({"fma_gflops": 100.0}, {"fma_gflops": 100.0, "tiles_gflops": {}}):
        assert [peak_gflops(old, dtype) for dtype in ("float32", "bfloat16", "int8")] == [100, 200, 400]
