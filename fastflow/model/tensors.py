"""Read safetensors files as arrays that map the file into memory.

huggingface.co/docs/safetensors describes the format. A file that changes while it is read raises an error.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.stored import BFLOAT16, CHANGED, watch, widen
from fastflow.values import open_regular, panics, reason, system_errors, system_failed

Arrays = dict[str, NDArray[Any]]
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": BFLOAT16,
    **{f"{kind.upper()}{8 * size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)},
}  # fmt: skip
HEAD = 8


class MappedTensors:
    """Read-only ``arrays`` of a safetensors file, aligned or not; bfloat16 has the dtype ``kernels.stored.BFLOAT16``.

    The file stays mapped while one of the arrays lives.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._map, self._pages = _check_map(path)
            self.path = path
            data = memoryview(self._pages)
            start = HEAD + int.from_bytes(data[:HEAD], "little")
            entries = json.loads(bytes(data[HEAD:start]))
            entries.pop("__metadata__", None)
            places = {name: _place(entry, start, len(self._map)) for name, entry in entries.items()}
        except Exception as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM:
                raise MemoryError(f"no memory to map {path}") from error
            said = "cannot be read" if system_failed(error) else "is damaged or not safetensors"
            raise FastflowError(f"{path} {said}: {reason(error)}") from error
        for name, entry in entries.items():
            if entry["dtype"] not in DTYPES:
                raise FastflowError(f"{path}: tensor {name} has dtype {entry['dtype']}, which is not supported")
        self.arrays: Arrays = {}
        for name, (offset, shape) in places.items():
            kind = DTYPES[entries[name]["dtype"]]
            count = math.prod(shape)
            flat = np.frombuffer(self._pages, kind, count, offset) if count else np.empty(0, kind)
            self.arrays[name] = flat.reshape(shape)

    def check(self) -> None:
        if getattr(self._pages, "changed", False):
            raise FastflowError(f"{self.path}: {CHANGED}")

    def release(self) -> None:
        self.check()
        if hasattr(self._map, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _check_map(path: Path) -> tuple[mmap.mmap, Any]:
    from safetensors import safe_open

    with open_regular(path) as handle:
        try:
            with panics(), system_errors(), safe_open(str(path), "numpy"):
                pass
        except FileNotFoundError:  # safetensors calls every failure so
            open_regular(path).close()
            raise
        pages = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return pages, watch(pages, handle.fileno())


def _place(entry: dict[str, Any], start: int, size: int) -> tuple[int, tuple[int, ...]]:
    first, last = (start + int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(n) for n in entry["shape"])
    width = DTYPES[entry["dtype"]].itemsize if entry["dtype"] in DTYPES else 0
    if not start <= first <= last <= size or any(n < 0 for n in shape):
        raise ValueError("a tensor lies outside the file")
    if width and math.prod(shape) * width != last - first:
        raise ValueError("a tensor's shape does not fit its bytes")
    return first, shape


def read_tensors(path: Path) -> Arrays:
    """Copy every tensor of a file; bfloat16 becomes float32."""
    mapped = MappedTensors(path)
    found = {name: np.array(widen(array)) for name, array in mapped.arrays.items()}
    mapped.check()
    return found
