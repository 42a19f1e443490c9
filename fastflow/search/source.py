"""A file whose rows are searched: the interface that .db and .npy have in common."""

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
    """A row that was found. ``text`` is None if the file has none, ``id`` if it has none; ``fields`` holds the
    values of the fields that were kept.
    """

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
    """Rows, each a number and a vector of ``dim`` numbers, stored in ``precision``.

    ``kind``: the rows that ``blocks`` and ``vectors`` give: ``floats``, ``int8`` about 0, or ``bits``, eight to a byte.
    ``fingerprint``: of the model that made them, None if the file has none. ``truncated``: the vectors were
    shortened to ``dim``. ``normalized``: divided by their L2 norm.
    """

    path: Path
    dim: int
    precision: str = "float32"
    kind: str = "floats"
    fingerprint: str | None = None
    truncated: bool = False
    normalized: bool = False

    @abstractmethod
    def count(self) -> int:
        """The rows of the file."""

    @abstractmethod
    def blocks(self, where: str | None = None) -> Iterator[tuple[Rows, NDArray[Any]]]:
        """The row numbers (b,), ascending over all blocks, and their vectors (b, width).

        ``where``: rows for which the SQL condition holds. Raises a FastflowError for a file that was changed.
        """

    @abstractmethod
    def vectors(self, rows: Rows) -> NDArray[Any]:
        """The vectors (n, width) of ``rows``, which are there, in that order."""

    @abstractmethod
    def numbers(self, where: str) -> Rows:
        """The numbers of the rows for which the SQL condition holds, ascending."""

    @abstractmethod
    def hits(self, found: Sequence[tuple[int, float]]) -> list[Hit]:
        """The rows of ``found``, row and score each, with text, id and fields."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the file."""
