"""The interface through which .db and .npy are searched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import Layout
from fastflow.files.read.matrix import MatrixFile
from fastflow.files.read.sources import Sources, one_text

Rows = NDArray[np.int64]
ROWS = 8192  # rows of a .npy read at a time
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
        """Yield ascending row numbers (b,) and vectors (b, width) that meet ``where``."""

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


class MatrixSource(Source):
    """The rows of a .npy of floats; ``texts``: the file of its texts."""

    def __init__(self, path: Path, texts: Path | None = None) -> None:
        self.path, self._texts = path, texts
        self._file = MatrixFile(str(path))
        self.dim = self._file.matrix.shape[1]

    def count(self) -> int:
        return len(self._file.matrix)

    def blocks(self, where: str | None = None) -> Iterator[tuple[Rows, NDArray[Any]]]:
        if where is not None:
            raise self._refuse_condition()
        start = 0
        for block in self._file.blocks(ROWS):
            yield np.arange(start, start + len(block)), block
            start += len(block)

    def numbers(self, where: str) -> Rows:
        raise self._refuse_condition()

    def vectors(self, rows: Rows) -> NDArray[Any]:
        return self._file.matrix[rows]

    def hits(self, found: Sequence[tuple[int, float]]) -> list[Hit]:
        texts = {} if self._texts is None else self._read_texts({row for row, _ in found})
        return [Hit(row, score, texts.get(row)) for row, score in found]

    def close(self) -> None:
        self._file.__exit__(None, None, None)

    def _read_texts(self, rows: set[int]) -> dict[int, str]:
        texts, count = {}, 0
        with Sources([str(self._texts)]) as sources:
            for row in sources.rows(Layout()):
                count += 1
                if row.number in rows:
                    texts[row.number] = one_text(row)
        if count != len(self._file.matrix):
            raise FastflowError(
                f"{self._texts} has {count:,} texts, and {self.path} has {len(self._file.matrix):,} vectors; give the "
                "file that was embedded"
            )
        return texts

    def _refuse_condition(self) -> UsageError:
        return UsageError(f"{self.path} has no columns, so no condition can choose its rows; make a .db for that")
