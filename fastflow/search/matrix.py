"""Read the rows of a .npy for a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import Layout
from fastflow.files.read.matrix import MatrixFile
from fastflow.files.read.sources import Sources, one_text
from fastflow.search.source import Hit, Rows, Source

ROWS = 8192  # rows read at a time


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
