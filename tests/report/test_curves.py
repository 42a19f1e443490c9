"""Curves of training and the stopping point, as they are found in the files of a run."""

from __future__ import annotations

import json

import pytest

from fastflow.errors import FastflowError
from fastflow.report.curves import curves_in, logs_beside, read_log, stops_in

CURVES = {"bits": [(1.0, 2.0), (2.0, 1.5)]}


@pytest.mark.parametrize(
    "value",
    [
        [{"step": 1, "bits": 2.0}, {"step": 2, "bits": 1.5}],
        {"step": [1, 2], "bits": [2.0, 1.5]},
        {"schedule": {"lr": 1e-3}, "": [{"step": 1, "bits": 2.0, "note": "x"}, {"step": 2, "bits": 1.5}]},
    ],
)
def test_curves_are_found_in_either_form_and_nested(value):
    assert curves_in(value) == CURVES


def test_curves_keep_apart_what_is_named_apart_and_drop_what_is_no_number():
    rows = [{"step": 1, "a": 1, "b": None}, {"step": 2, "a": float("nan"), "b": 3}]
    assert curves_in({"flow": rows, "other": [1, 2]}) == {"flow.a": [(1.0, 1.0)], "flow.b": [(2.0, 3.0)]}


def test_curves_of_pairs_are_called_after_the_measure_beside_them():
    looks = [{"kept_step": 10, "steps": 14, "separability": 2.0, "history": [[0, 1.5], [10, 2.0], [14, None]]}]
    assert curves_in({"choice": {"looks": looks, "texts": 9}}) == {
        "choice.looks.separability": [(0.0, 1.5), (10.0, 2.0)]
    }
    assert stops_in({"choice": {"looks": looks, "chosen": "flow"}, "reasons": ["kept step 10"]}) == (
        {"choice.looks.kept_step": 10.0},
        ["kept step 10"],
    )
    assert curves_in([[1, 2.0], [2, 1.5]]) == {"value": CURVES["bits"]}
    assert curves_in({"layers": [1, 4], "empty": [], "rows": [["a", 1]]}) == {}


def test_stops_and_reasons_are_found_by_name():
    steps, why = stops_in(
        {"stopping": {"best_step": 40, "reason": "it rose"}, "schedule": {"save_steps": 500, "seed": 3}}
    )
    assert steps == {"stopping.best_step": 40.0}
    assert why == ["it rose"]
    assert stops_in({"chain": [{"stopped_at": 7}, {"kept": True}]})[0] == {"chain.stopped_at": 7.0}


def test_logs_are_read_as_json_lines_and_json(tmp_path):
    model = tmp_path / "m"
    model.mkdir()
    lines = model / "curve.jsonl"
    lines.write_text('{"step": 1, "bits": 2.0}\n\n{"step": 2, "bits": 1.5}\n')
    whole = tmp_path / "curve.json"
    whole.write_text(json.dumps({"step": [1, 2], "bits": [2.0, 1.5]}))
    assert read_log(lines) == read_log(whole) == CURVES
    assert logs_beside(model) == [lines]
    lines.write_text("{")
    with pytest.raises(FastflowError, match=r"curve\.jsonl is not JSON"):
        read_log(lines)


def test_logs_are_read_from_tensorboard(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with pytest.raises(FastflowError, match="no TensorBoard scalars"):
        read_log(tmp_path)
    writer = SummaryWriter(str(tmp_path))
    for step, bits in CURVES["bits"]:
        writer.add_scalar("bits", bits, int(step))
    writer.close()
    assert read_log(tmp_path) == CURVES
