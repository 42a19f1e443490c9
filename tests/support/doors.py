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
    return int(rt.similarity([*rt.encode_query([query])], rt.encode_document(texts))[0].argmax())


def exchange(folder: Path, other: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
