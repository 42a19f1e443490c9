"""An entry of the report: the bound that counts, and when it is reached."""

import pytest

from fastflow.bench.report.ratios import against, by_key, entry


@pytest.mark.parametrize(
    ("unit", "bounds", "reached"),
    [
        ("x", (2.0, 9.0), True), ("x", (2.1, None), False), ("x", (None, 2.0), True),
        ("ms", (2.0, 1.0), True), ("ms", (None, 1.9), False), ("x", (None, None), None),
    ],
)  # fmt: skip
def test_a_ratio_is_at_least_its_bound_and_a_time_at_most(unit, bounds, reached):
    assert entry("name", 2, 2.0, unit, *bounds)["reached"] is reached


def test_the_fastest_peer_that_was_measured_counts():
    times = {"ours": 2.0, "slow": 9.0, "fast": 3.0}
    rows = [{"name": n, "dtype": "int8", "batch": 1, "threads": 2, "median_ms": ms} for n, ms in times.items()]
    at = by_key([*rows, rows[0] | {"batch": 8, "median_ms": 50.0}], batch=1)
    (made,) = against("here", at, ("ours", "int8"), [("absent", "int8"), ("slow", "int8"), ("fast", "int8")])
    assert (made["name"], made["value"], made["threads"]) == ("here: ours int8 against fast int8", 1.5, 2)
    assert against("here", at, ("ours", "int8"), [("absent", "int8")]) == []
    assert against("here", at, ("absent", "int8"), [("fast", "int8")]) == []
