"""The printed table: kept files, who was left out, once, and a warning on a machine that others keep busy."""

from __future__ import annotations

import pytest

from fastflow.bench.report.table import busy, main, table

from support.places import ROOT

MACHINE = {
    "gpu": None, "processor": "some", "processors_usable": 2, "versions": {}, "ceilings": [],
    "processors_used_by_others": 0.0,
}  # fmt: skip


ABSENT = "this peer needs onnx, which is not installed"


def report(others=0.0, skipped=()):
    machine = MACHINE | {"processors_used_by_others": others}
    return {"machine": machine, "rows": [], "ratios": [], "skipped": list(skipped)}


def left_out(report):
    return [line for line in table(report).splitlines() if line.startswith("left out: ")]


def test_a_reason_is_given_once_with_everybody_whom_it_kept_out():
    absent = [{"subject": "s", "name": name, "reason": ABSENT} for name in ("one float32", "one int8", "one float32")]
    other = {"subject": "t", "name": "*", "threads": 2, "batch": 1024, "reason": "too large"}
    assert left_out(report(skipped=[*absent, other])) == [
        f"left out: s: one float32, one int8: {ABSENT}",
        "left out: t, 2 threads, B = 1,024: everybody: too large",
    ]


@pytest.mark.parametrize(("others", "too_much"), [(None, False), (0.0, False), (0.19, False), (0.21, True)])
def test_a_busy_machine_is_said_to_spoil_the_ratios(others, too_much):
    made = report(others)
    assert busy(made["machine"]) is too_much
    assert ("do not quote these ratios" in table(made)) is too_much


def test_targets_are_printed_from_a_kept_file(capsys):
    kept = ROOT / "bench" / "results" / "zen4" / "end-to-end-default"
    main([f"{kept}.json"])
    shown = capsys.readouterr().out
    assert shown == kept.with_suffix(".txt").read_text(encoding="utf-8")
    assert "(must >= " in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "usage: python -m fastflow.bench.report.table FILE.json"),
        (["absent.json"], "absent.json cannot be read as JSON"),
        ([__file__], "cannot be read as JSON"),
    ],
)
def test_a_file_that_is_no_run_is_one_sentence(arguments, said):
    with pytest.raises(SystemExit, match=said):
        main(arguments)
