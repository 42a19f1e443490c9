"""Numbers and files of a report: readable, and never half-written."""

from __future__ import annotations

import pytest

from fastflow.bench.report import columns, files
from fastflow.errors import FastflowError


def test_durations_and_json_numbers_are_readable():
    assert [columns.duration(ms) for ms in (0.00512, 0.0123, 0.9996, 12.34, 1250.0)] == [
        "5.12 us", "12.3 us", "1000 us", "12.3 ms", "1.25 s",
    ]  # fmt: skip
    assert files.number({"a": [1.23456789, 2, None], "b": True}) == {"a": [1.23457, 2, None], "b": True}


def test_nothing_half_written(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        files.write_json({"value": float("nan")}, tmp_path / "bench.json")
    with pytest.raises(FastflowError, match="cannot be written"):
        files.write_json({"value": 1.0}, tmp_path / "absent" / "bench.json")
    assert list(tmp_path.iterdir()) == []
