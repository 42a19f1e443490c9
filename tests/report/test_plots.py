"""The drawings of a report: names that fit, ids that do not clash."""

from __future__ import annotations

import re

import pytest

from fastflow.report.plots import LETTERS, MOST_LETTERS, apart, dots, short


def test_long_names_are_shortened_in_their_middle():
    assert short("x" * MOST_LETTERS, MOST_LETTERS) == "x" * MOST_LETTERS
    name = short("abc" + "x" * 40 + "yz", 12)
    assert (len(name), name[:3], name[-2:], "…" in name) == (12, "abc", "yz", True)


@pytest.mark.slow
def test_a_tall_legend_takes_no_room_from_the_drawing():
    def height(names: list[str]) -> float:
        drawn = dots(["x", "y"], {name: [1.0, 2.0] for name in names}, "label")
        return float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn)[1])

    side_by_side, stacked = height(list("abcdef")), height([f"a rather long name of a subject {i}" for i in range(6)])
    assert stacked - side_by_side > 4 * LETTERS


def test_apart_renames_ids_and_every_reference():
    text = '<svg><path id="p"/><use xlink:href="#p"/><g clip-path="url(#c)"/><clipPath id="c"/></svg>'
    assert apart(text, "k-") == (
        '<svg><path id="k-p"/><use xlink:href="#k-p"/><g clip-path="url(#k-c)"/><clipPath id="k-c"/></svg>'
    )
