"""The sentences and marks of a report follow its figures, whichever way these fall."""

from __future__ import annotations

import re

import pytest

from fastflow.report.page import page
from fastflow.report.parts import HIGHEST, LOWEST, Best, Line, Section, comparison


@pytest.mark.parametrize(
    ("values", "toward", "best"),
    [
        ((1.0, 3.0, 2.0), HIGHEST, {1}),
        ((1.0, 3.0, 2.0), LOWEST, {0}),
        ((-0.2, 0.3, 0.2), 0.0, {0, 2}),  # a tie of both signs
        ((-60.0, -41.0, -38.0), -40.0, {1}),  # nearest to another figure
        ((0.4, 0.3, 0.2), 0.3, {1}),
        ((2.001, 1.0, 1.999), HIGHEST, {0, 2}),  # equal as printed
        ((float("nan"), 1.0, 2.0), HIGHEST, {2}),
        ((float("nan"),) * 3, HIGHEST, set()),
        ((1.0, 2.0, 3.0), float("nan"), set()),  # nothing to be near to
        ((1.0,), HIGHEST, set()),  # nothing to be better than
    ],
)
def test_best_values_are_bold_by_the_direction_of_their_row(values, toward, best):
    line = Line("row", {f"s{i}": value for i, value in enumerate(values)}, toward)
    table = comparison("", "", [line])
    assert {i for i, cell in enumerate(table.rows[0][1:]) if isinstance(cell, Best)} == best
    shown = page("t", ("", ""), [], [Section("s", "", "", {}, [table])], [])
    assert re.findall(r"<b>(.*?)</b>", shown) == [f"{values[i]:.2f}" for i in sorted(best)]
