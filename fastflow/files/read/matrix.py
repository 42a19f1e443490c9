"""A matrix of vectors (n, D), in a memory-mapped file or an array, read a few rows at a time."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.inputs import Input
from fastflow.kernels.stored import CHANGED, was_changed, watch
from fastflow.transforms.vectors import first_bad
from fastflow.values import MOST, reason, short, system_failed

HELD = 1 << 26  # bytes read before the system gets the pages back
# raised for a damaged header, which NumPy parses as Python
FAULTS = (ValueError, TypeError, EOFError, OSError, RecursionError, SyntaxError, TokenError)
FLOATS = ("float16", "float32", "float64")


class MatrixRows:
    """Reads rows of ``array`` (n, D) as float32; ``index`` (m,) selects rows.

    ``pages``: the map of ``array``; the system gets its pages back every HELD bytes. Raises a FastflowError, beginning
    with ``name``, for another kind of array, and for a row with NaN, infinity or a number beyond float32.
    """

    def __init__(
        self, array: NDArray[Any], name: str, index: NDArray[np.int64] | None = None, pages: mmap.mmap | None = None
    ) -> None:
        _check_kind(array.shape, array.dtype, name)
        if isinstance(array, np.ma.MaskedArray):
            raise FastflowError(f"{name}: a masked array would be read without its mask; give a plain one")
        self.array, self.name, self._index, self._pages = array, name, index, pages
        self._read = 0
        self.shape = (len(array) if index is None else len(index), array.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        chosen = rows if self._index is None else self._index[rows]
        if self._pages is not None and self._read > HELD:
            self._pages.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is refused
            block = np.array(self.array[chosen], np.float32, order="C")
        self._read += block.nbytes
        if self._pages is not None and was_changed(self.array):
            raise FastflowError(f"{self.name}: {CHANGED}")
        if (bad := first_bad(block)) is not None:
            row = np.arange(len(self.array))[chosen][bad]
            raise FastflowError(f"{self.name}, row {row}: holds NaN or infinity, or what float32 cannot hold")
        return block

    def blocks(self, size: int, start: int = 0) -> Iterator[NDArray[np.float32]]:
        for first in range(start, len(self), size):
            yield self[first : first + size]

    def number(self, row: int) -> int:
        return row if self._index is None else int(self._index[row])

    def take(self, rows: NDArray[np.int64]) -> MatrixRows:
        return MatrixRows(self.array, self.name, rows if self._index is None else self._index[rows], self._pages)


class MatrixFile(Input):
    """An open .npy file; ``matrix``: its mapped rows."""

    def __init__(self, path: str) -> None:
        if not is_matrix_file(path):
            raise UsageError(f"{path}: vectors come as a .npy file, as np.save writes it")
        super().__init__(path)
        try:
            if self.identity is None:
                raise FastflowError(f"{path} is not a file, so it cannot be mapped")
            self.matrix = _map(self.file, path)
        except OSError as error:
            self.file.close()
            raise FastflowError(f"{path} cannot be mapped: {error.strerror}") from error
        except BaseException:
            self.file.close()
            raise

    def blocks(self, size: int, start: int = 0) -> Iterator[NDArray[np.float32]]:
        """Yield blocks of ``size`` rows; raises a FastflowError after a block if the file changed."""
        for block in self.matrix.blocks(size, start):
            yield block
            self.check_unchanged()


def _check_kind(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    if len(shape) != 2 or not (shape[0] >= 0 and 1 <= shape[1] <= MOST):
        raise FastflowError(f"{name}: vectors come as a matrix (N, D), and this has the shape {shape}")
    if dtype.name not in FLOATS:
        raise FastflowError(
            f"{name}: vectors are {', '.join(FLOATS)}, and this holds {short(dtype.name)}; save them as one of these"
        )


def _map(handle: BinaryIO, path: str) -> MatrixRows:
    try:
        major, minor = npy.read_magic(handle)
        if (major, minor) not in ((1, 0), (2, 0)):
            raise FastflowError(f"{path}: version {major}.{minor} of .npy is of tables with names; save a plain matrix")
        read = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, fortran, dtype = read(handle)
    except FAULTS as error:
        said = "cannot be read" if system_failed(error) else "is not a .npy file"
        raise FastflowError(f"{path} {said}: {reason(error)}") from error
    _check_kind(shape, dtype, path)
    start, size = handle.tell(), os.fstat(handle.fileno()).st_size
    if size != start + shape[0] * shape[1] * dtype.itemsize:
        raise FastflowError(f"{path} is damaged: its header says {shape} of {dtype}, and its {size} bytes differ")
    if not shape[0]:
        return MatrixRows(np.empty(shape, dtype), path)
    mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    return MatrixRows(
        np.ndarray(shape, dtype, watch(mapped, handle.fileno()), start, order="F" if fortran else "C"),
        path,
        pages=mapped,
    )


def is_matrix_file(path: str | Path) -> bool:
    """Whether ``path`` names vectors rather than texts."""
    return str(path).endswith(".npy")
