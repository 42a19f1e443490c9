"""Pooled vectors that are used again: the keys of texts, what is kept of one, and the interface of the two stores.

A key is a hash of 128 bits of the whole text and of everything that decides its pooled vector: the model, the
arithmetic, the prompt, the version of fastflow. Dimensions, length, precision and log-density are made of the pooled
vector afterwards, by the steps that a run without a store takes.
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

KEY = 16  # bytes of a key
CHECK = 8  # bytes that bind a kept vector to its key


class Store(ABC):
    """Rows of bytes by key, all of one size.

    ``since``: the number of the last row that a finished run has stored, None if runs share no rows.
    """

    since: int | None = None

    @abstractmethod
    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The rows of the ``keys`` that are there."""

    @abstractmethod
    def add(self, rows: Mapping[bytes, bytes]) -> None:
        """Keep ``rows``, whose keys ``find`` has just not found."""

    def describe(self) -> str:
        """The content in words; empty if nothing is kept after the run."""
        return ""

    def known(self, keys: Sequence[bytes], since: int) -> set[bytes]:
        """The ``keys`` of rows with a number up to ``since``."""
        return set()

    def finish(self) -> None:  # noqa: B027 (nothing to note, if runs share no rows)
        """Note that a run has written all of its rows."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files."""


def decides(runtime: Runtime, prompt: str | None) -> dict[str, Any]:
    """Everything but the text that decides the bits of a pooled vector."""
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
    """The key of each text."""
    run = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).digest()
    return [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY, key=run).digest() for text in texts]


def packed(pooled: NDArray[Any], cut: Iterable[int]) -> list[bytes]:
    """A row for each vector of (B, D); ``cut`` are the numbers of texts that were cut at the model's limit."""
    numbers = set(cut)
    return [bytes([at in numbers]) + vector.tobytes() for at, vector in enumerate(np.ascontiguousarray(pooled))]


def unpacked(rows: Sequence[bytes], dim: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], int]:
    """(B, D) pooled vectors of ``rows``, and how many of the texts were cut."""
    data = bytearray().join(memoryview(row)[1:] for row in rows)  # torch would warn of an array it may not write
    pooled = np.frombuffer(data, dtype).reshape(len(rows), dim)
    return pooled, sum(row[0] for row in rows)


def check_of(key: bytes, row: bytes) -> bytes:
    """CHECK bytes that another key or a changed row does not have."""
    return hashlib.blake2b(row, digest_size=CHECK, key=key).digest()
