"""A spoilt model directory: two backends refuse it in a sentence, or agree. Bytes: the model, then the changes."""

import shutil
from pathlib import Path

import bases
import numpy as np
from harness import Choices, Finding, check_contract, scratch
from mutators import MUTATIONS, mutate

from fastflow import Runtime
from fastflow.transforms.vectors import compute_paired_cosine

MEMORY = 2 << 30
AGREE, CONDITIONED = 0.999, 0.9999
FOLDER, BASES = scratch(), bases.make()


def one(data: bytes) -> None:
    base = BASES[data[0] % len(BASES)] if data else BASES[0]
    directory = FOLDER / "case"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(base, directory)
    done = mutate(directory, Choices(data[1:]))
    try:
        check(directory)
    except Finding as finding:
        raise Finding(f"{finding} ({base.name}: {done})") from finding


def check(directory: Path) -> None:
    """The CPU and the reference backend; one may refuse a model that the other takes."""
    ours, theirs = (embed(directory, backend) for backend in ("cpu", "reference"))
    if isinstance(ours, str) or isinstance(theirs, str):
        return
    if ours.shape != theirs.shape:
        raise Finding(f"shapes {ours.shape} and {theirs.shape}")
    if agreement(ours, theirs) < AGREE:
        exact = embed(directory, "reference", "float64")
        if not isinstance(exact, str) and agreement(theirs, exact) >= CONDITIONED:  # float32 is enough for it
            raise Finding(f"the backends disagree: cosine {agreement(ours, theirs)}")


def embed(directory: Path, backend: str, dtype: str = "float32", texts: list[str] = bases.TEXTS) -> np.ndarray | str:
    def run() -> np.ndarray:
        with Runtime(directory, "cpu", dtype, 1, backend=backend) as runtime:
            return runtime.encode(texts)

    found = check_contract(run, memory=MEMORY)
    if not isinstance(found, str) and not np.isfinite(found).all():
        raise Finding(f"NaN in silence: {backend}")
    return found


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The least cosine of two embeddings of a text; 1 if both are zero, or there are no dimensions."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    scale = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0), 1e-300)
    zero = (np.abs(a).max(axis=1, initial=0) == 0) & (np.abs(b).max(axis=1, initial=0) == 0)
    return float(np.where(zero, 1, compute_paired_cosine(a / scale, b / scale)).min(initial=1))


def seeds() -> list[bytes]:
    return [bytes([i, 0, way, way, 1, 2, 3, 4]) for i in range(len(BASES)) for way in range(len(MUTATIONS))]
