"""Pooled vectors that are used again: keys, rows of bytes, and the interface of both stores.

A key is a 128-bit hash of the text and of everything else that decides its pooled vector. Later options are not in it.
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
CHECK = 8  # bytes that bind a kept vector to its key


class Store(ABC):
    """Rows of bytes by key, all of one size.

    ``since``: the last row that a finished run stored; None if runs share no rows.
    """

    since: int | None = None

    @abstractmethod
    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the rows of the ``keys`` that the store has."""

    @abstractmethod
    def add(self, rows: Mapping[bytes, bytes]) -> None:
        """Keep ``rows``, new keys that ``find`` did not find."""

    def describe(self) -> str:
        return ""

    def known(self, keys: Sequence[bytes], since: int) -> set[bytes]:
        """Return the ``keys`` of rows up to ``since``."""
        return set()

    def finish(self) -> None:  # noqa: B027 (nothing to note, if runs share no rows)
        """Note that a run wrote all of its rows."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


def decides(runtime: Runtime, prompt: str | None) -> dict[str, Any]:
    """Return everything but the text that decides a pooled vector."""
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
    """Return a row for each vector of (B, D); ``cut``: the numbers of cut texts."""
    numbers = set(cut)
    return [bytes([at in numbers]) + vector.tobytes() for at, vector in enumerate(np.ascontiguousarray(pooled))]


def unpack_rows(rows: Sequence[bytes], dim: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], int]:
    """Return pooled vectors (B, D), and the number of cut texts."""
    data = bytearray().join(memoryview(row)[1:] for row in rows)  # torch would warn of an array it may not write
    pooled = np.frombuffer(data, dtype).reshape(len(rows), dim)
    return pooled, sum(row[0] for row in rows)


def check_of(key: bytes, row: bytes) -> bytes:
    """Return CHECK bytes that bind a row to its key."""
    return hashlib.blake2b(row, digest_size=CHECK, key=key).digest()
