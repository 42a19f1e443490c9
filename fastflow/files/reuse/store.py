"""Store of pooled vectors that are used again: keys, rows of bytes, and interface.

A key is a 128-bit hash of all that decides the pooled vector. A row: 1 if the text was cut, the vector.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.runtime import Runtime
from fastflow.version import __version__

KEY = 16
CHECK = 8  # bytes of the checksum of a key and its row


class Store(ABC):
    """Interface of a store: rows of bytes, all of one size, by key.

    ``since``: the number of the last row of a finished run; None if runs share no rows. If rows have ids, ``since`` and
    ``known`` are of the noted keys of (id, text).
    """

    since: int | None = None

    @abstractmethod
    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the rows of the ``keys`` that the store has."""

    @abstractmethod
    def add(self, rows: Mapping[bytes, bytes]) -> None:
        """Store ``rows`` by keys that ``find`` did not find."""

    def describe(self) -> str:
        return ""

    def known(self, keys: Sequence[bytes], since: int) -> set[bytes]:
        """Return the ``keys`` of rows with numbers up to ``since``."""
        return set()

    def note(self, keys: Sequence[bytes]) -> None:  # noqa: B027 (as ``finish``)
        """Take ``keys`` of (id, text), known once the run has finished."""

    def finish(self) -> None:  # noqa: B027 (nothing to note, if runs share no rows)
        """Note that a run wrote all of its rows."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


def decides(runtime: Runtime, prompt: str | None) -> dict[str, Any]:
    """Return the settings that decide a text's pooled vector."""
    info = runtime.info()
    return {
        "fastflow": __version__,
        "fingerprint": runtime.fingerprint,
        "backend": runtime.backend,
        "dtype": info["dtype"],
        "arithmetic": runtime.session.calibrator.arithmetic,
        "max_length": info["max_length"],
        "prompt": runtime.session.model.prompts.resolve(prompt),
    }


def keys_of(texts: Iterable[str], decided: Mapping[str, Any]) -> list[bytes]:
    """Return the key of each text."""
    run = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).digest()
    return [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY, key=run).digest() for text in texts]


def pack_rows(pooled: NDArray[Any], cut: Iterable[int]) -> list[bytes]:
    """Return a row of bytes for each vector of (B, D); ``cut``: numbers of cut texts."""
    numbers = set(cut)
    return [bytes([at in numbers]) + vector.tobytes() for at, vector in enumerate(np.ascontiguousarray(pooled))]


def unpack_rows(rows: Sequence[bytes], dim: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], int]:
    """Return the pooled vectors (B, D) in ``rows``, and the number of cut texts."""
    data = bytearray().join(memoryview(row)[1:] for row in rows)  # writable, for torch warns of read-only arrays
    pooled = np.frombuffer(data, dtype).reshape(len(rows), dim)
    return pooled, sum(row[0] for row in rows)


def check_of(key: bytes, row: bytes) -> bytes:
    """Return the checksum, of CHECK bytes, of a key and its row."""
    return hashlib.blake2b(row, digest_size=CHECK, key=key).digest()
