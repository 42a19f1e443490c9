"""Write the sound outputs that the targets database and shards spoil."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness  # noqa: F401 - the path of support
import numpy as np

from fastflow.files.write import Block
from fastflow.files.write.outputs import writer_for

ROWS, DIM = 40, 8
VECTORS = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)


def write(path: Path, rows: range, run: dict[str, Any]) -> None:
    with writer_for(path)(path, run) as writer:
        writer.begin()
        writer.about = {"dim": DIM, "truncate_dim": None, "prompt": None}
        texts, found = [f"text {i}" for i in rows], VECTORS[rows.start : rows.stop]
        kept = {"n": list(rows)} if writer_for(path).keeps_fields else {}
        writer.write(Block(rows, texts, found, kept=kept))
        writer.finish()
