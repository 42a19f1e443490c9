"""One comparison: only who is right is timed, who is excused is named, and nobody is begun after the end."""

from __future__ import annotations

import time

import pytest

from fastflow.bench.measure.compare import Candidate, compare
from fastflow.errors import FastflowError


def candidate(name: str, dtype: str = "float32") -> Candidate:
    return Candidate(name, dtype, "x", lambda: lambda: name)


def admit(found: Candidate) -> tuple:
    if found.name == "wrong":
        raise FastflowError("wrong differs")
    return found.prepare(), len(found.name)


def run(candidates: list, excuse: object, **more: float) -> tuple:
    timed, left_out = [], []

    def timer(calls: dict) -> dict:
        timed.append(list(calls))
        return {key: call() for key, call in calls.items()}

    measured = compare(candidates, admit, timer, excuse, lambda c, reason: left_out.append((c.key, reason)), **more)
    return [(found.candidate.key, found.accuracy, found.timing) for found in measured], timed, left_out


def test_who_is_excused_is_left_out_and_the_others_are_timed_together():
    four = [candidate("ours"), candidate("wrong"), candidate("peer"), candidate("peer", "int8")]
    measured, timed, left_out = run(four, lambda c, error: f"since {error}")
    assert measured == [("ours float32", 4, "ours"), ("peer float32", 4, "peer"), ("peer int8", 4, "peer")]
    assert timed == [["ours float32", "peer float32", "peer int8"]]
    assert left_out == [("wrong float32", "since wrong differs")]


def test_who_is_not_excused_ends_the_run():
    with pytest.raises(FastflowError, match="wrong differs"):
        run([candidate("ours"), candidate("wrong")], lambda c, error: None)


def test_after_the_end_only_the_first_is_measured():
    measured, _, left_out = run([candidate("a"), candidate("b")], lambda c, error: None, end=time.monotonic() - 1)
    assert [found[0] for found in measured] == ["a float32"]
    assert left_out == [("b float32", "the others before it used up the time")]
