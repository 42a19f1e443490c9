"""What the tests of the adapters share."""

import shutil
from pathlib import Path

import numpy as np

import fastflow

TEXTS = [
    "The dog runs across the field.",
    "A cat sleeps on the sofa.",
    "Shares fell sharply.",
    "The bank raised rates.",
]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def nearest(rt: fastflow.Runtime, query: str, texts: list[str]) -> int:
    """The place among ``texts`` of the one that the model finds for a query."""
    return int(rt.similarity([*rt.encode_query([query])], rt.encode_document(texts))[0].argmax())


def exchange(folder: Path, other: Path) -> None:
    """Another model in the place of one."""
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
