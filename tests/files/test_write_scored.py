"""Vectors and log-densities in one row: parted, they are what was joined."""

from __future__ import annotations

import io

import numpy as np
import pytest

from fastflow.files.write import scored
from fastflow.files.write.scored import column, joined


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 8])
def test_what_is_joined_comes_apart_again(monkeypatch, dtype, rows):
    monkeypatch.setattr(scored, "ROWS", 4)
    rng = np.random.default_rng(0)
    vectors, log_probs = rng.integers(0, 99, (rows, 3)).astype(dtype), rng.normal(size=rows)
    handle = io.BytesIO(b"head" + joined(vectors[:2], log_probs[:2]) + joined(vectors[2:], log_probs[2:]))
    assert len(handle.getvalue()) == 4 + rows * (vectors[:1].nbytes if rows else 0) + rows * 8
    parts = {name: list(column(handle, 4, vectors.dtype, 3, name)) for name in ("vector", "log_prob")}
    assert b"".join(parts["vector"]) == vectors.tobytes()
    assert b"".join(parts["log_prob"]) == log_probs.tobytes()
    assert len(parts["vector"]) == -(-rows // 4)


def test_without_log_densities_the_bytes_are_those_of_the_vectors():
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert joined(vectors, None) == vectors.tobytes()
