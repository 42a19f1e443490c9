"""A model directory of which one file is replaced, its hashes made to agree again: one sentence, or finite vectors.

Bytes: the model, the file, then what is in it. `models` changes files that stay well formed.
"""

import shutil

import models
import numpy as np
from harness import Finding, contract, scratch
from mutations import files, repair

from fastflow import Runtime

FOLDER = scratch()
NAMES = ("flow", "whiten", "st-many", "table", "table-bag", "vocab", "sharded")
LARGEST = 6000  # bytes of a file that is a seed


def one(data: bytes) -> None:
    base = chosen(data[0] if data else 0)
    directory = FOLDER / "case"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(base, directory)
    there = files(directory)
    there[data[1] % len(there) if len(data) > 1 else 0].write_bytes(data[2:])
    repair(directory)
    contract(lambda: embed(directory))


def chosen(number: int):
    return models.bases()[0].parent / NAMES[number % len(NAMES)]


def embed(directory) -> None:
    """Some vectors, all finite."""
    with Runtime(directory, "cpu", "float32", 1) as runtime:
        if not np.isfinite(runtime.encode(models.TEXTS[:3])).all():
            raise Finding("NaN in silence")


def seeds() -> list[bytes]:
    out = []
    for number in range(len(NAMES)):
        for place, path in enumerate(files(chosen(number))):
            if path.stat().st_size <= LARGEST:
                out.append(bytes([number, place]) + path.read_bytes())
    return out
