"""One comparison: only who is right is timed, who is excused is named, and nobody is begun after the end."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fastflow.bench.measure.compare import Candidate, Errors, check, compare, least_cosine
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


def test_a_wrong_result_is_an_error_not_a_row():
    exact = np.random.default_rng(0).standard_normal((4, 8))
    unfused = Errors(1e-7, 1e-7)
    right = exact.astype(np.float32)
    assert check("right", right, exact, unfused).relative <= 1e-7
    wrong, missing = right.copy(), right.copy()
    wrong[2, 3] += 1e-3
    missing[0, 0] = np.nan
    for z in (wrong, missing, right[:, :7]):
        with pytest.raises(FastflowError, match="bench: broken"):
            check("broken", z, exact, unfused)
    found = check("ill conditioned", wrong, exact, Errors(1e-3, 1e-3))
    assert found.max_abs == pytest.approx(1e-3, rel=1e-3)
    assert found.relative <= 4e-3


pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")


def test_cosine_bounds_by_precision():
    exact = np.eye(2)
    tilted = exact + np.array([[0, 0.03], [0, 0]])
    assert least_cosine("a", "int8", tilted, exact) == pytest.approx(1 / np.sqrt(1 + 0.03**2))
    assert least_cosine("a", "bfloat16", tilted, exact) >= 0.999
    with pytest.raises(FastflowError, match="a float32 differs"):
        least_cosine("a", "float32", tilted, exact)
    for wrong in (exact[:, :1], np.full((2, 2), np.nan)):
        with pytest.raises(FastflowError, match="bench: a int8"):
            least_cosine("a", "int8", wrong, exact)
