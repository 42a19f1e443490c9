"""Tables of a report: the best values of a row, and figures as they are printed."""

from __future__ import annotations

from fastflow.report.parts import Best, Line, comparison, figure


def test_a_further_column_is_not_taken_for_a_subject():
    lines = [Line("a", {"model": 1.0, "raw": 2.0}, note="9"), Line("b", {"model": 2.0, "raw": 1.0}, note="8")]
    last, beside = comparison("", "set", lines, "n"), comparison("", "set", lines, "n", beside=True)
    assert (last.columns, last.rows[0]) == (["set", "model", "raw", "n"], ["a", "1.00", "2.00", "9"])
    assert (beside.columns, beside.rows[1]) == (["set", "model", "n", "raw"], ["b", "2.00", "8", "1.00"])
    assert [isinstance(cell, Best) for cell in beside.rows[1]] == [False, True, False, False]


def test_no_figure_is_minus_zero():
    assert [figure(value, 3) for value in (-0.0004, 0.0, -0.0006, float("nan"))] == [
        "0.000", "0.000", "-0.001", "undefined",
    ]  # fmt: skip
