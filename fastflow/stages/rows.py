"""Vectors that are read a few rows at a time."""

from __future__ import annotations

from typing import Any, Protocol


class Rows(Protocol):
    """(n, D) vectors whose rows come by slice or by number: an array, or a file that is larger than memory."""

    @property
    def shape(self) -> Any:
        """(n, D)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...
