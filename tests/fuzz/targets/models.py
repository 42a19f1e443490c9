"""A model directory spoilt by tests/attacks/mutations.py, its hashes made to agree again: a sentence or right numbers.

Bytes: the model, then the choices of the changes.
"""

import shutil

import models
from harness import Choices, contract, judged, scratch
from mutations import MUTATIONS, mutate, repair

FOLDER = scratch()
BASES = models.bases()


def one(data: bytes) -> None:
    base = BASES[data[0] % len(BASES)] if data else BASES[0]
    directory = FOLDER / "case"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(base, directory)
    mutate(directory, Choices(data[1:]))
    repair(directory)
    contract(lambda: judged(models.judge(directory)))


def seeds() -> list[bytes]:
    return [bytes([i, 0, way, way, 1, 2, 3, 4]) for i in range(len(BASES)) for way in range(len(MUTATIONS))]
