"""Rows of two sources read as those of one."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.stages.rows import Joined

FIRST = np.arange(20, dtype=np.float32).reshape(5, 4)
SECOND = -np.arange(12, dtype=np.float32).reshape(3, 4)
WHOLE = np.concatenate([FIRST, SECOND])


@pytest.mark.parametrize(
    "rows",
    [slice(None), slice(0, 1), slice(3, 7), slice(5, 8), slice(6, 99), slice(8, 9), slice(None, None, 3),
     np.array([7, 0, 5, 4, 7]), np.array([], np.int64), np.array([4, 3]), np.array([5])],
)  # fmt: skip
def test_rows_are_those_of_the_two_in_order(rows):
    joined = Joined(FIRST, SECOND)
    assert (len(joined), joined.shape) == (8, (8, 4))
    found = joined[rows]
    assert found.dtype == np.float32
    assert np.array_equal(found, WHOLE[rows])


def test_the_wider_type_is_kept():
    assert Joined(FIRST, SECOND.astype(np.float64))[:].dtype == np.float64
