"""Vectors read a few rows at a time."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Rows(Protocol):
    """(n, D) vectors read by slice or by number: an array, or a file larger than memory."""

    @property
    def shape(self) -> Any: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Joined:
    """The rows of ``first`` (n, D), then of ``second`` (k, D), without a copy."""

    def __init__(self, first: Rows, second: Rows) -> None:
        self._first, self._second = first, second
        self.shape = (len(first) + len(second), first.shape[1])

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        numbers = np.arange(len(self))[rows]
        behind = numbers >= len(self._first)
        out = np.empty((len(numbers), self.shape[1]), np.result_type(self._first[:1], self._second[:1]))
        out[~behind] = self._first[numbers[~behind]]
        out[behind] = self._second[numbers[behind] - len(self._first)]
        return out
