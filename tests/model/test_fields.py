"""Numbers and flags of config.json: the JSON type, the bounds, and the field's name in the message."""

from pathlib import Path

import pytest

from fastflow.errors import FastflowError
from fastflow.model.fields import flag, number, whole_number

HERE = Path("somewhere")


@pytest.mark.parametrize("value", [4.0, "4", True, None, [4]])
def test_a_whole_number_is_a_json_whole_number(value):
    with pytest.raises(FastflowError, match=r"somewhere/config\.json, field n: missing or not a whole number"):
        whole_number({"n": value}, "n", HERE)


def test_bounds_of_whole_numbers():
    assert [whole_number({"n": n}, "n", HERE, 0, 3) for n in (0, 3)] == [0, 3]
    with pytest.raises(FastflowError, match="field n: must be at least 0, not -1"):
        whole_number({"n": -1}, "n", HERE, 0)
    with pytest.raises(FastflowError, match="field n: must be at most 3, not 4"):
        whole_number({"n": 4}, "n", HERE, 0, 3)
    with pytest.raises(FastflowError, match="field n: missing"):
        whole_number({}, "n", HERE)


@pytest.mark.parametrize("value", [-1e-9, 1.5, 10**30, float("nan"), float("-inf"), "0", True, None, {}])
def test_a_number_lies_within_its_bounds(value):
    assert [number(n, "x", HERE, 0, 1) for n in (0, 0.5, 1)] == [0.0, 0.5, 1.0]
    with pytest.raises(FastflowError, match=r"somewhere/config\.json, field x: must be a number from 0 to 1, not "):
        number(value, "x", HERE, 0, 1)


def test_a_flag_is_true_or_false():
    assert [flag(config, "b", HERE) for config in ({}, {"b": False}, {"b": True})] == [False, False, True]
    with pytest.raises(FastflowError, match="field b: must be true or false, not None"):
        flag({"b": None}, "b", HERE)
