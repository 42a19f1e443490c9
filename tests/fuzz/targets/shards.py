"""A folder of two parts for `status` and `merge`, spoilt. Bytes: choices of spoil_parts, or a manifest."""

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import outputs
from harness import Choices, Finding, check_contract, scratch
from mutators import manifest_path, spoil_parts

from fastflow.files.shards.manifest import Counted, manifest_of
from fastflow.files.shards.merging import Status, merge
from fastflow.files.write.outputs import WRITERS

MEMORY = 1 << 30
FOLDER, SUFFIXES = scratch(), tuple(WRITERS)


@cache
def make_parts(suffix: str) -> Path:
    folder = FOLDER / suffix[1:]
    folder.mkdir()
    run = {"fingerprint": "f", "options": {"layout": {"field": None}}}
    for shard in (1, 2):
        part, counted = folder / f"{shard}{suffix}", [Counted(outputs.ROWS, 9, "0" * 64)]
        manifest = manifest_of(part, (shard, 2), ["in.txt"], counted, run, ["in.txt"])
        outputs.write(part, range(*manifest.rows), {"fingerprint": "f"})
        manifest.add_hash(part).write(part)
    return folder


def one(data: bytes) -> None:
    suffix = ".npy" if not data or data.startswith(b"{") else SUFFIXES[data[0] % len(SUFFIXES)]
    folder, sound = FOLDER / "case", False
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(make_parts(suffix), folder)
    if data.startswith(b"{"):
        manifest_path(folder / "1.npy").write_bytes(data)
    else:
        sound = spoil_parts(folder, suffix, Choices(data[1:]))
    check_contract(lambda: join(folder, suffix, sound), sound, MEMORY)


def join(folder: Path, suffix: str, sound: bool) -> None:
    Status.of(folder).lines()
    merge(folder, folder / f"out{suffix}")
    if suffix == ".npy" and sound and not np.array_equal(np.load(folder / "out.npy"), outputs.VECTORS):
        raise Finding("wrong rows")


def seeds() -> list[bytes]:
    manifest = manifest_path(make_parts(".npy") / "1.npy").read_bytes()
    return [manifest, *(bytes([i, 2, 3, 4, 5]) for i in range(len(SUFFIXES)))]
