"""Blocks of rows to be written, and files written with them."""

from __future__ import annotations

import numpy as np

from fastflow.files.write import Block

META = {"fingerprint": "f" * 64, "precision": "float32", "normalized": False}


def block(vectors: np.ndarray, start: int = 0, ids: bool = False) -> Block:
    rows = list(range(start, start + len(vectors)))
    return Block(rows, [f"text {i}" for i in rows], vectors, ids={"id": [f"id-{i}" for i in rows]} if ids else {})


def vectors_of(dtype: str, rows: int = 7, width: int = 5) -> np.ndarray:
    values = np.random.default_rng(0).normal(0, 20, (rows, width))
    return (np.abs(values) if dtype == "uint8" else values).astype(dtype)
