"""Stored arrays: their types, mapped files, and packing into panels for compiled products."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # NumPy has no such type
STORED = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)  # in the order of _cpu.STORED_FLOAT ...
LARGEST = 1e6  # the largest weight
CHANGED = "its file was changed while it was read; replace files as a whole, and open it again"


class NotFinite(ValueError):
    """Part ``part`` of weight ``name`` holds NaN or a magnitude above LARGEST."""

    def __init__(self, name: str, part: int = 0) -> None:
        super().__init__(f"the weight {name} holds NaN or infinity, or a magnitude above {LARGEST:g}")
        self.name, self.part = name, part


class PackedMatrix(NamedTuple):
    """Up to three stacked matrices, and how they are packed. Offsets are in bytes; fields are as in
    ``c/gemm/packing.h``.

    Row r of the result is row rows[r] of the stacked parts, zeros for -1.
    """

    name: str
    parts: tuple[Array, ...]  # the bytes of each (part_rows, columns)
    stored: int
    part_rows: int
    columns: int
    rows: NDArray[np.int32]
    groups: int
    padded: int
    factor: float
    lanes: int
    panels: int
    scale: int = 0
    shift: int = 0
    zero: int = 0
    spare: int = 0
    by: Array | None = None
    together: int = 1


def watch(pages: Any, file: int) -> Any:
    """Watch ``pages``, the map of a whole open ``file``: if it is cut short, lost pages read as zeros.

    Without the compiled extension it returns ``pages``, and reading a lost page ends the process.
    """
    if find_spec("fastflow.kernels._cpu") is None or not len(pages):
        return pages
    from fastflow.kernels._cpu import Watched

    return Watched(pages, file)


def was_changed(array: NDArray[Any]) -> bool:
    """Return whether the watched file of ``array`` was changed."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return bool(getattr(base, "changed", False))


def record(dtype: np.dtype[Any], fields: Mapping[str, int]) -> Array:
    """Return a record of a structured ``dtype``; missing fields are 0."""
    out: Array = np.zeros((), dtype)
    for name, value in fields.items():
        out[name] = value
    return out


def usable(values: Array) -> bool:
    """Return whether ``values`` hold no NaN and no magnitude above LARGEST."""
    # as Python floats, because a float16 cannot hold LARGEST
    return float(values.min(initial=0)) >= -LARGEST and float(values.max(initial=0)) <= LARGEST


def storable(array: Array) -> Array:
    """Return ``array``, C-contiguous, as float32 unless its dtype is in ``STORED``."""
    return np.ascontiguousarray(array, array.dtype if array.dtype in STORED else np.float32)


def raw(array: Array) -> NDArray[np.uint8]:
    """View a C-contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8)


def widen(array: Array) -> Array:
    """Return ``array``, as float32 if it is ``BFLOAT16``."""
    if array.dtype != BFLOAT16:
        return array
    return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: Array) -> Array:
    """Round float32 to the nearest bfloat16, ties to even, as uint16."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def quantise(values: Array) -> tuple[Array, Array]:
    """Return int8 (n, k) and float32 scales (n,), 1/127 of each row's largest magnitude."""
    scale = np.abs(values).max(axis=1) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale >= np.finfo(np.float32).tiny)
    return np.rint(values * inverse[:, None]).astype(np.int8), scale
