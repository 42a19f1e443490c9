"""fastflow bench: whole runs, and wrong usage in a sentence."""

import json
import re
from pathlib import Path

import pytest

from fastflow.bench import cli
from fastflow.bench.measure.machine import Neighbours, usable_threads
from fastflow.bench.report import table as report
from fastflow.errors import FastflowError, UsageError, missing_extra

from support.benches import FLOW

WORDS = ("must", "aim", "target", "REACHED", "reached", "judged")


def test_no_target_is_judged_on_a_busy_machine_and_none_is_printed(hasty, monkeypatch, capsys):
    for others, reached in ((0.0, {True, False}), (usable_threads() / 2, {None})):
        monkeypatch.setattr(Neighbours, "processors", lambda self, others=others: others)
        done = cli.run(against=["lean", "folded"], device="cpu", threads=1, sizes=FLOW)
        judged = {ratio["reached"] for ratio in done["ratios"] if (ratio["must"] or ratio["aim"]) is not None}
        assert judged
        assert judged <= reached
        shown = capsys.readouterr().out
        assert "In short; x: the peer's time over fastflow's" in shown
        assert not [word for word in WORDS if word in shown]
        assert all(f"{ratio['value']:.1f} {ratio['unit']}" in shown for ratio in done["ratios"])
        assert ("not judged" in report.table(done, targets=True)) == (reached == {None})


ROW_KEYS = {
    *("suite", "name", "backend", "dtype", "batch", "tokens", "median_ms", "p20_ms", "p80_ms", "runs", "max_abs_err"),
    *("subject", "threads", "gflops", "gbs", "floor_ms", "times_floor", "err_against_unfused", "relative_err", "note"),
}


@pytest.mark.slow
def test_a_whole_run_writes_json_table_and_plot(hasty, tmp_path, capsys):
    data, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    against = ["ukp", "lean", "torch-folded-state-eager"]
    cli.run(against=against, json_path=data, plot_path=picture, device="cpu", threads=1, sizes=FLOW)
    written = json.loads(data.read_text())
    names = {"fastflow", "torch-ukp-eager", "torch-lean-eager", "torch-folded-state-eager"}
    assert {(r["name"], r["batch"]) for r in written["rows"]} == {(name, batch) for name in names for batch in (1, 3)}
    for r in written["rows"]:
        assert set(r) >= ROW_KEYS
        assert (r["suite"], r["dtype"], r["tokens"], r["threads"]) == ("flow", "float32", None, 1)
        assert 0 < r["p20_ms"] <= r["median_ms"] <= r["p80_ms"]
        assert 0 <= r["max_abs_err"] < 1e-3
    assert written["machine"]["ceilings"][0]["threads"] == 1
    assert all(
        set(ratio) == {"name", "threads", "value", "unit", "must", "aim", "reached"} for ratio in written["ratios"]
    )
    assert "torch-lean-eager" in " ".join(ratio["name"] for ratio in written["ratios"])
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.png"}
    shown = capsys.readouterr()
    assert all(name in shown.out for name in names)
    assert "bench: " in shown.err


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
            "a shape is for the suites encoder, end-to-end, serve, not for flow, startup",
        ),
    ],
)
def test_wrong_usage(model, options, message):
    with pytest.raises(UsageError, match=message):
        cli.run(model, **options)


def test_a_plot_needs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    with pytest.raises(FastflowError, match=re.escape(str(missing_extra("bench", "matplotlib", "--plot")))):
        cli.run(plot_path=tmp_path / "bench.png")
