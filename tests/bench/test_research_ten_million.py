"""The study of many lines: the lines are the same whatever their number, memory is sampled, and growth is an error."""

from __future__ import annotations

import json
import os

import click
import numpy as np
import pytest
from click.testing import CliRunner

from fastflow.bench.research import ten_million
from fastflow.bench.research.ten_million import Measured, check_constant, main, resident_mb, write_lines


def test_lines_are_short_distinct_and_the_same_for_any_count(tmp_path):
    write_lines(tmp_path / "a", 100)
    write_lines(tmp_path / "b", 1000)
    few, many = (path.read_text().splitlines() for path in (tmp_path / "a", tmp_path / "b"))
    assert few == many[:100]
    assert len(set(many)) == 1000
    assert {len(line.split()) for line in many} <= set(range(3, 13))


def test_the_memory_of_a_process_is_seen():
    before, held = resident_mb(os.getpid()), np.ones(10_000_000)
    assert resident_mb(os.getpid()) - before > 0.9 * held.nbytes / 1e6
    assert resident_mb(2**22 + 1) == 0


def test_growth_is_an_error():
    half = Measured(100, 1.0, 100.0, 50.0, 1.0, 1.0)
    check_constant(half, half._replace(lines=200, peak_mb=50 + ten_million.SLACK))
    with pytest.raises(click.ClickException, match="memory grows with the lines: 50 MB for 100, 63 MB for 200"):
        check_constant(half, half._replace(lines=200, peak_mb=51 + ten_million.SLACK))


def test_a_run_is_measured_and_leaves_nothing(tmp_path):
    result = CliRunner().invoke(main, ["--lines", "300", "--threads", "1", "--folder", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["lines"] == 300
    assert found["peak_mb"] > 10
    assert found["output_mb"] == 0.1  # 300 rows of 256 bytes
    assert list(tmp_path.iterdir()) == []
