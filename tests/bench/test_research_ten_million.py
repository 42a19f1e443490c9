"""The study of many lines: the lines are the same whatever their number, a run is continued, and growth is an error."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow.bench.research import ten_million, watched
from fastflow.bench.research.ten_million import SLACK, check_constant, compare, growth, main, summary, write_lines
from fastflow.errors import FastflowError


def window(rate: float = 100.0, peak: float = 50.0, paused: float = 0.0, others: float = 0.0) -> dict:
    return {
        "event": "window", "rows": 10 * rate, "until": 0, "seconds": 10.0, "paused": paused, "peak_mb": peak,
        "processors": 2.0, "others": others,
    }  # fmt: skip


def measure(*arguments: object) -> dict:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_lines_are_short_and_the_same_for_any_count(tmp_path):
    write_lines(tmp_path / "a", 100)
    write_lines(tmp_path / "b", 1000)
    few, many = (path.read_text().splitlines() for path in (tmp_path / "a", tmp_path / "b"))
    assert few == many[:100]
    assert len(set(many)) > 900  # a word alone may come again
    assert {len(line.split()) for line in many} == {1, 2, 3, 4}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_the_rate_leaves_out_windows_with_a_pause_and_names_them():
    stop = {"event": "stop", "seconds": 50.0, "paused": 7.0, "peak_mb": 61.0, "code": 0}
    windows = [window(100), window(90, others=0.5), window(80, others=0.5), window(5, paused=7.0)]
    found = summary([{"event": "start"}, *windows, stop])
    assert found["rows_per_second"]["median"] == 90
    assert found["rows_per_second_undisturbed"]["median"] == 100
    assert found["windows"] == {"all": 4, "with_a_pause": 1, "undisturbed": 1}
    assert found["seconds"] == {"in_windows": 40, "of_processes": 50, "paused": 7}
    assert found["peak_mb"] == 61
    assert summary([])["rows_per_second"] is None


def test_growth_is_that_within_one_process():
    """A process that continues begins with little memory: the whole would hide the growth."""
    start = {"event": "start"}
    first = [window(peak=50 + 10 * at) for at in range(8)]
    assert growth([start, *first]) == 60
    assert growth([start, *first, start, *[window(peak=40)] * 3]) == 60
    assert growth([start, *[window()] * 3]) is None


def test_growth_is_an_error():
    check_constant({"growth_mb": SLACK, "lines": 200})
    with pytest.raises(FastflowError, match="memory grows with the lines: by 13 MB over 200"):
        check_constant({"growth_mb": SLACK + 1, "lines": 200})
    with pytest.raises(FastflowError, match="too few windows"):
        check_constant({"growth_mb": None, "lines": 200})


def test_a_run_is_measured_and_its_json_written(tmp_path):
    found = measure("--lines", 300, "--out", tmp_path / "x.json", "--", "--threads", "1")
    assert json.loads((tmp_path / "x.json").read_text()) == found
    assert (found["lines"], found["compared_rows"], found["starts"]) == (300, 300, 1)
    assert found["peak_mb"] > 10
    assert found["output_mb"] == (300 * 256 + 128) / 1e6
    assert found["options"] == ["--threads", "1"]
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.whole
def test_a_stopped_run_is_continued_to_the_same_bytes(tmp_path, monkeypatch):
    """The first process is stopped as soon as rows are written: the second begins behind them."""
    arguments = ("--lines", 10_000, "--folder", tmp_path, "--", "--threads", "1")
    with monkeypatch.context() as patched:

        def first(target):
            if watched.state_path(target).exists():
                raise KeyboardInterrupt

        patched.setattr(watched, "finished_rows", first)
        result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 1
    assert result.output.endswith("Error: stopped; the same command continues it\n")
    found = measure(*arguments)
    starts = [event for event in ten_million.read_log(tmp_path / "log.jsonl") if event["event"] == "start"]
    assert found["starts"] == len(starts) == 2
    assert starts[1]["rows"] >= 4096
    assert measure("--lines", 10_000, "--", "--threads", "2")["sha256"] == found["sha256"]
    assert measure(*arguments) == found  # nothing is left to do
    assert CliRunner().invoke(main, ["--lines", "9", "--folder", str(tmp_path)]).exit_code == 1


def test_rows_that_are_not_those_of_encode_are_an_error(tmp_path):
    source, target = tmp_path / "lines.txt", tmp_path / "x.npy"
    write_lines(source, 20)
    vectors = ten_million.Runtime().encode(source.read_text().splitlines(), precision="int8")
    np.save(target, vectors)
    compare(source, target, 20)
    with pytest.raises(FastflowError, match=r"has shape \(20, 256\), not 21 rows"):
        compare(source, target, 21)
    vectors[7, 3] ^= 1
    np.save(target, vectors)
    with pytest.raises(FastflowError, match="row 7: is not the vector"):
        compare(source, target, 20)


def test_a_log_whose_last_line_was_cut_is_read(tmp_path):
    (tmp_path / "log").write_text('{"event": "begun"}\n{"event": "wind')
    assert ten_million.read_log(tmp_path / "log") == [{"event": "begun"}]
