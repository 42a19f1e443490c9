"""The file of ``--ranges``: the minimum and the maximum of each dimension, which int8 and uint8 cut into 256 steps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.matrix import MatrixFile
from fastflow.stages.vectors import check_ranges

ROWS = 8192  # read at a time


@dataclass(frozen=True)
class Ranges:
    """``values`` (2, D'), float32, as ``Runtime.encode`` takes them, of the file ``path``.

    Ranges are equal if their numbers are, whatever their file is called.
    """

    path: str = field(compare=False)
    sha256: str
    values: NDArray[np.float32] = field(compare=False, repr=False)

    def check_width(self, dim: int) -> None:
        """Raise a UsageError unless the vectors that are stored have ``dim`` numbers."""
        if (width := self.values.shape[1]) != dim:
            raise UsageError(
                f"--ranges {self.path}: holds ranges of {width} dimensions, and the vectors that are stored have "
                f"{dim}; make them of vectors with the same model and --dim"
            )


def read_ranges(path: Path | str | None, precision: str) -> Ranges | None:
    """The ranges in a .npy: two rows are the minima and the maxima, more rows are embeddings that have them.

    Raises a FastflowError that names the option for another file, and a UsageError for another ``precision``.
    """
    if path is None:
        return None
    if precision not in ("int8", "uint8"):
        raise UsageError(
            f"--ranges divides the numbers of --precision int8 or uint8, and the precision is {precision}; leave it "
            "out, or name one of these"
        )
    try:
        with MatrixFile(str(path)) as file:
            found = _extremes(file)
    except FastflowError as error:
        raise type(error)(f"--ranges {error}") from error
    values = check_ranges(found, precision, found.shape[1], f"--ranges {path}, read as minima and maxima")
    assert values is not None  # noqa: S101 (of ranges that are there)
    return Ranges(str(path), hashlib.sha256(values.tobytes()).hexdigest(), values)


def _extremes(file: MatrixFile) -> NDArray[Any]:
    """The two rows of ``file``, or the minima and the maxima of more."""
    rows = len(file.matrix)
    if rows < 2:
        raise UsageError(
            f"{file.path}: has {rows} {'row' if rows == 1 else 'rows'}; give two, the minima and the maxima, or some "
            "hundred embeddings, from which they are taken"
        )
    if rows == 2:
        return file.matrix[:]
    found = [(block.min(axis=0), block.max(axis=0)) for block in file.blocks(ROWS)]
    lows, highs = zip(*found, strict=True)
    return np.stack([np.min(lows, axis=0), np.max(highs, axis=0)])


def values_of(ranges: Ranges | None) -> NDArray[np.float32] | None:
    """As ``Runtime.encode`` takes them."""
    return None if ranges is None else ranges.values


def digest_of(ranges: Ranges | None) -> str | None:
    """As a run records them: by their sha256."""
    return None if ranges is None else ranges.sha256
