"""fastflow bench: whole runs, every run of --suite all, and wrong usage in a sentence."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from fastflow.bench import cli
from fastflow.bench.measure.machine import Neighbours, usable_threads
from fastflow.cli import main
from fastflow.errors import FastflowError, UsageError

from support.benches import FLOW
from support.places import ROOT


@pytest.mark.slow
def test_a_whole_run_writes_json_and_table_and_names_a_busy_machine(tmp_path, monkeypatch, capsys):
    data, names = tmp_path / "bench.json", {"fastflow", "torch-lean-eager", "torch-eager"}
    for others in (0.0, usable_threads() / 2):
        monkeypatch.setattr(Neighbours, "processors", lambda self, others=others: others)
        done = cli.run(against=["lean", "torch-eager"], json_path=data, device="cpu", threads=1, sizes=FLOW)
        shown = capsys.readouterr()
        assert "In short; x: the peer's time over fastflow's" in shown.out
        assert all(f"{ratio['value']:.1f} {ratio['unit']}" in shown.out for ratio in done["ratios"])
        assert ("do not quote these ratios" in shown.out) == (others > 0)
        assert all(name in shown.out for name in names)
        assert "bench: " in shown.err
    written = json.loads(data.read_text())
    assert {(r["name"], r["batch"]) for r in written["rows"]} == {(name, batch) for name in names for batch in (1, 3)}
    for r in written["rows"]:
        assert (r["suite"], r["dtype"], r["tokens"], r["threads"]) == ("flow", "float32", None, 1)
        assert 0 < r["p20_ms"] <= r["median_ms"] <= r["p80_ms"]
        assert 0 <= r["max_abs_err"] < 1e-3
    assert all(set(ratio) == {"name", "threads", "value", "unit"} for ratio in written["ratios"])
    assert "torch-lean-eager" in " ".join(ratio["name"] for ratio in written["ratios"])
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (None, {"suites": ["flow", "speed"]}, "no bench suite 'speed'; suites: flow, encoder, end-to-end, startup"),
        (None, {"against": ["keras"], "device": "cpu"}, r"unknown peer 'keras'.*torch-lean-eager"),
        (None, {"json_path": Path("absent", "bench.json")}, "its folder does not exist"),
        (None, {"device": "tpu"}, "unknown device"),
        (None, {"suites": ["encoder"], "shape": "tiny"}, "no shape 'tiny'; shapes: minilm-l6, minilm-l12, bert-base"),
        ("m", {"suites": ["encoder"], "shape": "minilm-l6"}, "give a model or a shape, not both"),
        (
            None,
            {"suites": ["flow", "encoder", "startup"], "shape": "minilm-l6"},
            "to-end, serve, rerank, not for flow, startup",
        ),
    ],
)
def test_wrong_usage(model, options, message):
    with pytest.raises(UsageError, match=message):
        cli.run(model, **options)


RUNS = {"flow": ("--suite", "flow", "--quick"), **{f"flow-{i}": ("--suite", "flow") for i in range(1, 6)}}


@pytest.fixture
def started(monkeypatch):
    """The commands that would run; each writes a kept report with another ratio, except those named in ``broken``."""
    commands: list[list[str]] = []
    broken: set[str] = set()

    def run(command, **_):
        commands.append(command)
        path = Path(command[command.index("--json") + 1])
        report = json.loads((ROOT / "bench" / "results" / "xeon-amx" / "flow-1.json").read_text())
        report["ratios"] = [report["ratios"][0] | {"name": "B = 1024", "value": float(len(commands))}]
        report["machine"] |= {"commit": cli.find_commit(), "processors_used_by_others": 0.1}
        if path.stem not in broken:
            path.write_text(json.dumps(report))
        return SimpleNamespace(returncode=int(path.stem in broken))

    monkeypatch.setattr(cli.subprocess, "run", run)
    return commands, broken


def test_every_run_once_and_ranges(tmp_path, monkeypatch, started):
    commands, _ = started
    monkeypatch.setattr(cli, "find_commit", lambda: "abc")
    cli.run_every(tmp_path, device="cpu", threads=2, runs=RUNS)
    assert len(commands) == 6
    assert commands[0][1:] == [
        "-c", cli.COMMAND, "bench", "--suite", "flow", "--quick", "--device", "cpu", "--threads", "2", "--json",
        str(tmp_path / "flow.json"),
    ]  # fmt: skip
    (found,) = json.loads((tmp_path / cli.RANGES).read_text())["ranges"]
    assert found == {"name": "B = 1024", "threads": 2, "least": 2.0, "largest": 6.0, "runs": 5}
    loud = json.loads((tmp_path / "flow-1.json").read_text())
    loud["machine"]["processors_used_by_others"] = 0.5
    (tmp_path / "flow-1.json").write_text(json.dumps(loud))
    cli.run_every(tmp_path, runs=RUNS)
    (found,) = json.loads((tmp_path / cli.RANGES).read_text())["ranges"]
    assert (found["runs"], found["least"]) == (4, 3.0), "a busy run is left out"
    cli.run_every(tmp_path, runs=RUNS)
    assert len(commands) == 6, "all are of this commit"
    (tmp_path / "flow-3.json").write_text("{")
    cli.run_every(tmp_path, runs=RUNS)
    assert len(commands) == 7, "the damaged one is made again"
    monkeypatch.setattr(cli, "find_commit", lambda: "def")
    cli.run_every(tmp_path, ["flow"], runs=RUNS | {"startup": ("--suite", "startup")})
    assert len(commands) == 8, "a suite is skipped with all its runs"


@pytest.mark.parametrize("commit", [None, "abc+"])
def test_what_is_of_no_commit_is_made_again(tmp_path, monkeypatch, started, commit):
    commands, _ = started
    monkeypatch.setattr(cli, "find_commit", lambda: commit)
    for _ in range(2):
        cli.run_every(tmp_path, ["flow-1", "flow-2", "flow-3", "flow-4", "flow-5"], runs=RUNS)
    assert len(commands) == 2
    assert not (tmp_path / cli.RANGES).exists()


def test_a_run_that_fails_is_named_after_the_others(tmp_path, monkeypatch, started):
    commands, broken = started
    monkeypatch.setattr(cli, "find_commit", lambda: "abc")
    broken.add("flow-2")
    with pytest.raises(FastflowError, match="runs that failed: flow-2; their reasons are above, the others are in"):
        cli.run_every(tmp_path, runs=RUNS)
    assert len(commands) == 6


def test_wrong_usage_of_every_run(tmp_path):
    with pytest.raises(UsageError, match="there is no run 'speed' to skip; runs: flow, flow-1"):
        cli.run_every(tmp_path, ["speed"])
    for words in (["--suite", "all"], ["--suite", "all", "-o", str(tmp_path), "--quick"], ["--skip", "flow"]):
        shown = CliRunner().invoke(main, ["bench", *words])
        assert shown.exit_code == 2
        assert "--suite all" in shown.output
