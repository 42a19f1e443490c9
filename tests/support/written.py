"""What an output file holds, read by the library that its format belongs to."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from support.databases import read

ROWS = ("row", "index")  # the number of a row, in a .db and elsewhere


def read_back(path: Path) -> tuple[np.ndarray, dict[str, list[Any]]]:
    """(vectors (rows, D'), the other columns by name, values of fields as they were in JSON if the file says so)."""
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False), {}
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        lists = table["embedding"].combine_chunks()
        vectors = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), lists.type.list_size)
        return vectors, {"index" if n in ROWS else n: v for n, v in table.drop(["embedding"]).to_pydict().items()}
    if path.suffix == ".db":
        rows = read(path)[0]
        return np.array([row.pop("vector") for row in rows]), _columns(rows)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows = [dict(row) for row in csv.DictReader(file, strict=True)]
        for row in rows:
            row |= {name: json.loads(row[name]) for name in ("row", "embedding") if name in row}
    else:
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    return np.array([row.pop("embedding") for row in rows], np.float32), _columns(rows)


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = rows[0] if rows else ()
    return {"index" if name in ROWS else name: [row[name] for row in rows] for name in names}
