"""``--dedupe``: store a run's vectors in temporary files without names, which vanish with the process.

A memory-mapped hash table has their places, so memory stays constant.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.files.reuse.store import KEY, Store
from fastflow.files.write.partial import cannot_write

ENTRY = np.dtype([("key", "<u8", 2), ("place", "<u8")])  # a slot; place: the row's number + 1, 0 if free
FIRST_SLOTS = 1 << 16
FULLEST = 2 / 3  # share of taken slots at which the table grows
MOVED = 1 << 16  # slots copied at a time into a larger table


class Slots:
    """Hash table key -> place (row number from 0) in a memory-mapped file, with linear probing."""

    def __init__(self, folder: Path | None, slots: int = FIRST_SLOTS) -> None:
        self._folder, self._mask, self.entries = folder, np.uint64(slots - 1), 0
        with open_unnamed(folder) as handle:
            _reserve(handle, slots * ENTRY.itemsize)
            self._map = mmap.mmap(handle.fileno(), slots * ENTRY.itemsize)
        self._map.madvise(mmap.MADV_RANDOM)
        self._slots = np.frombuffer(self._map, ENTRY)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the places of ``keys`` (n, 2), -1 for absent ones."""
        found, slots, open_ = np.full(len(keys), -1), keys[:, 0] & self._mask, np.arange(len(keys))
        while len(open_):
            entries = self._slots[slots[open_]]
            taken = entries["place"] > 0
            hit = taken & (entries["key"] == keys[open_]).all(axis=1)
            found[open_[hit]] = entries["place"][hit] - 1
            open_ = open_[taken & ~hit]
            slots[open_] = (slots[open_] + np.uint64(1)) & self._mask
        return found

    def add(self, keys: NDArray[np.uint64], places: NDArray[np.int64]) -> None:
        """Add distinct, absent ``keys`` (n, 2); raises OSError if the disk is full."""
        while self.entries + len(keys) > FULLEST * len(self._slots):
            self._grow()
        entries = np.empty(len(keys), ENTRY)
        entries["key"], entries["place"] = keys, places + 1
        slots, open_ = keys[:, 0] & self._mask, np.arange(len(keys))
        while len(open_):
            free = self._slots["place"][slots[open_]] == 0
            self._slots[slots[open_[free]]] = entries[open_[free]]  # one of the keys gets the slot; others try the next
            open_ = open_[self._slots["place"][slots[open_]] != entries["place"][open_]]
            slots[open_] = (slots[open_] + np.uint64(1)) & self._mask
        self.entries += len(keys)

    def _grow(self) -> None:
        larger = Slots(self._folder, 2 * len(self._slots))
        for start in range(0, len(self._slots), MOVED):
            part = self._slots[start : start + MOVED]
            part = part[part["place"] > 0]
            larger.add(part["key"], part["place"].astype(np.int64) - 1)
        self.close()
        self._map, self._slots, self._mask = larger._map, larger._slots, larger._mask

    def close(self) -> None:
        del self._slots
        self._map.close()


class Repeats(Store):
    """Store of a run's rows, of ``size`` bytes each, in files in ``folder`` (None: the temporary folder)."""

    def __init__(self, folder: Path | None, size: int) -> None:
        self._folder, self._size = folder or Path(tempfile.gettempdir()), size
        try:
            self._table, self._rows = Slots(folder), open_unnamed(folder)
        except OSError as error:
            raise self._fail(error) from error

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        places = self._table.find(_numbers(keys)).tolist()
        wanted = sorted((place, key) for key, place in zip(keys, places, strict=True) if place >= 0)
        found = {key: os.pread(self._rows.fileno(), self._size, place * self._size) for place, key in wanted}
        if any(len(row) != self._size for row in found.values()):
            raise FastflowError(f"the temporary file of --dedupe in {self._folder} was cut short; run again")
        return found

    def add(self, rows: Mapping[bytes, bytes]) -> None:
        first = self._table.entries
        try:
            self._rows.write(b"".join(rows.values()))
            self._rows.flush()
            self._table.add(_numbers(list(rows)), np.arange(first, first + len(rows)))
        except OSError as error:
            raise self._fail(error) from error

    def close(self) -> None:
        self._table.close()
        self._rows.close()

    def _fail(self, error: OSError) -> FastflowError:
        return cannot_write(self._folder / "(temporary file of --dedupe)", error)


def open_unnamed(folder: Path | None) -> IO[bytes]:
    """Open a file in ``folder`` that has no name."""
    return tempfile.TemporaryFile(prefix="fastflow-", dir=folder)


def _reserve(handle: IO[bytes], size: int) -> None:
    """Allocate ``size`` zero bytes: a mapped page without room raises SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle.fileno(), 0, size)
    else:  # macOS
        for start in range(0, size, MOVED):
            handle.write(bytes(min(MOVED, size - start)))
        handle.flush()


def _numbers(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(keys), "<u8").reshape(len(keys), KEY // 8)
