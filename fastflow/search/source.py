"""The interface through which .db and .npy are searched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
SHOWN = 80  # characters of a text in the repr of a Hit


class Hit(NamedTuple):
    """A found row; ``text`` and ``id`` are None if the file has none; ``fields``: the kept fields."""

    row: int
    score: float
    text: str | None = None
    id: str | int | float | None = None
    fields: dict[str, object] = {}  # noqa: RUF012 (never written to)

    def __repr__(self) -> str:
        more = {"text": self.text and shorten(self.text, SHOWN), "id": self.id, "fields": self.fields}
        given = [f"{name}={value!r}" for name, value in more.items() if value not in (None, {})]
        return f"Hit({', '.join([f'row={self.row}', f'score={self.score:.4f}', *given])})"


class Source(ABC):
    """The rows of a searched file: row numbers, and vectors of ``dim`` numbers in ``precision``.

    ``kind``: ``floats``, ``int8`` about 0, or ``bits``, eight to a byte. ``fingerprint``: of the model. ``truncated``:
    vectors were shortened to ``dim``. ``normalized``: to L2 norm 1.
    """

    path: Path
    dim: int
    precision: str = "float32"
    kind: str = "floats"
    fingerprint: str | None = None
    id_column: str | None = None
    truncated: bool = False
    normalized: bool = False

    @abstractmethod
    def count(self) -> int:
        """Count the rows."""

    @abstractmethod
    def blocks(self, where: str | None = None) -> Iterator[tuple[Rows, NDArray[Any]]]:
        """Yield ascending row numbers (b,) and vectors (b, width) that meet the SQL condition ``where``."""

    @abstractmethod
    def vectors(self, rows: Rows) -> NDArray[Any]:
        """Read the vectors (n, width) of ``rows``, in their order."""

    @abstractmethod
    def numbers(self, where: str) -> Rows:
        """Read the ascending numbers of rows that meet ``where``."""

    @abstractmethod
    def hits(self, found: Sequence[tuple[int, float]]) -> list[Hit]:
        """Return a Hit for each (row, score) in ``found``."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""
