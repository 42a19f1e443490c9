"""bench --suite all: a file for each run, kept when it is of this commit, and ranges of ratios that move."""

import json

import pytest
from click.testing import CliRunner

from fastflow.bench import every
from fastflow.cli import main
from fastflow.errors import FastflowError, UsageError

from support.places import ROOT

RUNS = {"flow": ("--suite", "flow", "--quick"), **{f"flow-{i}": ("--suite", "flow") for i in range(1, 6)}}


@pytest.fixture
def started(monkeypatch):
    """The commands that would run; each writes a kept report with another ratio, except those named in ``broken``."""
    commands: list[list[str]] = []
    broken: set[str] = set()

    class Done:
        returncode = 0

    def run(command, **_):
        commands.append(command)
        path = command[command.index("--json") + 1]
        done = Done()
        if any(path.endswith(f"{name}.json") for name in broken):
            done.returncode = 1
            return done
        report = json.loads((ROOT / "bench" / "results" / "zen4" / "flow-1.json").read_text())
        ratio = report["ratios"][0] | {"name": "B = 1024", "value": float(len(commands))}
        report["machine"] |= {"commit": every.commit(), "processors_used_by_others": 0.1}
        report["ratios"] = [ratio]
        with open(path, "w") as file:
            json.dump(report, file)
        return done

    monkeypatch.setattr(every.subprocess, "run", run)
    return commands, broken


def test_every_run_once_and_ranges(tmp_path, monkeypatch, started):
    commands, _ = started
    monkeypatch.setattr(every, "commit", lambda: "abc")
    every.run_every(tmp_path, device="cpu", threads=2, runs=RUNS)
    assert len(commands) == 6
    assert commands[0][1:] == [
        "-c", every.COMMAND, "bench", "--suite", "flow", "--quick", "--device", "cpu", "--threads", "2", "--json",
        str(tmp_path / "flow.json"),
    ]  # fmt: skip
    (found,) = json.loads((tmp_path / every.RANGES).read_text())["ranges"]
    assert found == {"name": "B = 1024", "threads": 2, "least": 2.0, "largest": 6.0, "runs": 5}
    every.run_every(tmp_path, runs=RUNS)
    assert len(commands) == 6, "all are of this commit"
    (tmp_path / "flow-3.json").write_text("{")
    every.run_every(tmp_path, runs=RUNS)
    assert len(commands) == 7, "the damaged one is made again"
    monkeypatch.setattr(every, "commit", lambda: "def")
    every.run_every(tmp_path, ["flow"], runs=RUNS | {"startup": ("--suite", "startup")})
    assert len(commands) == 8, "a suite is skipped with all its runs"


@pytest.mark.parametrize("commit", [None, "abc+"])
def test_what_is_of_no_commit_is_made_again(tmp_path, monkeypatch, started, commit):
    commands, _ = started
    monkeypatch.setattr(every, "commit", lambda: commit)
    for _ in range(2):
        every.run_every(tmp_path, ["flow-1", "flow-2", "flow-3", "flow-4", "flow-5"], runs=RUNS)
    assert len(commands) == 2
    assert not (tmp_path / every.RANGES).exists()


def test_a_run_that_fails_is_named_after_the_others(tmp_path, monkeypatch, started):
    commands, broken = started
    monkeypatch.setattr(every, "commit", lambda: "abc")
    broken.add("flow-2")
    with pytest.raises(FastflowError, match="runs that failed: flow-2; their reasons are above, the others are in"):
        every.run_every(tmp_path, runs=RUNS)
    assert len(commands) == 6


def test_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="there is no run 'speed' to skip; runs: flow, flow-1"):
        every.run_every(tmp_path, ["speed"])
    for words in (["--suite", "all"], ["--suite", "all", "--out", str(tmp_path), "--quick"], ["--skip", "flow"]):
        shown = CliRunner().invoke(main, ["bench", *words])
        assert shown.exit_code == 2
        assert "--suite all" in shown.output
