"""A model directory with one file replaced, its hashes made to agree again. Bytes: the model, the file, its content."""

import shutil
from pathlib import Path

import bases
from harness import load, scratch
from mutators import list_files, repair

FOLDER, MODELS = scratch(), load("models")
NAMES = ("flow", "whiten", "st-many", "table", "table-bag", "vocab", "sharded")
LARGEST = 6000  # bytes of a file that is a seed


def one(data: bytes) -> None:
    directory = FOLDER / "case"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(choose(data[0] if data else 0), directory)
    there = list_files(directory)
    there[data[1] % len(there) if len(data) > 1 else 0].write_bytes(data[2:])
    repair(directory)
    MODELS.embed(directory, "auto", texts=bases.TEXTS[:3])


def choose(number: int) -> Path:
    return MODELS.BASES[0].parent / NAMES[number % len(NAMES)]


def seeds() -> list[bytes]:
    return [
        bytes([number, place]) + path.read_bytes()
        for number in range(len(NAMES))
        for place, path in enumerate(list_files(choose(number)))
        if path.stat().st_size <= LARGEST
    ]
