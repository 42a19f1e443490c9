"""A folder of two parts for `status` and `merge`, spoilt. Bytes: choices of tests/attacks/outputs.py, or a manifest."""

import shutil
from functools import cache
from pathlib import Path

import outputs
from harness import Choices, judged, scratch

FOLDER = scratch()


@cache
def sound(suffix: str) -> Path:
    """A sound folder of parts of that kind."""
    folder = FOLDER / suffix[1:]
    folder.mkdir()
    run = {"fingerprint": "f", "options": {"log_prob": False, "layout": {"field": None}}}
    for shard in (1, 2):
        part, counted = folder / f"{shard}{suffix}", [outputs.Counted(outputs.ROWS, 9, "0" * 64)]
        manifest = outputs.manifest_of(part, (shard, 2), ["in.txt"], counted, run, ["in.txt"])
        outputs.written(part, range(*manifest.rows), {"fingerprint": "f"})
        manifest.add_hash(part).write(part)
    return folder


def one(data: bytes) -> None:
    choices = Choices(data[1:])
    suffix = ".npy" if data.startswith(b"{") else outputs.SUFFIXES[data[0] % len(outputs.SUFFIXES)] if data else ".npy"
    folder = FOLDER / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound(suffix), folder)
    unspoilt = False
    if data.startswith(b"{"):
        outputs.manifest_path(folder / "1.npy").write_bytes(data)
    else:
        unspoilt = outputs.spoil_folder(folder, suffix, choices)
    judged(outputs.judge(folder, suffix, unspoilt, None))


def seeds() -> list[bytes]:
    manifest = outputs.manifest_path(sound(".npy") / "1.npy").read_bytes()
    return [manifest, *(bytes([i, 2, 3, 4, 5]) for i in range(len(outputs.SUFFIXES)))]
