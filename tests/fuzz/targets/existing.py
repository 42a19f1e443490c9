"""An output that exists, of fastflow or of others, and the options of `embed`. Bytes: the choices of both."""

import os
import shutil
import sqlite3
from pathlib import Path

from harness import Choices, Finding, check_contract, scratch

from fastflow import Runtime
from fastflow.files import EmbedConfig, Run
from fastflow.files.embed import embed_file
from fastflow.files.write.outputs import WRITERS

FOLDER, SUFFIXES = scratch(), tuple(WRITERS)
RUNTIME = Runtime("static")
KINDS = ("absent", "ours", "changed", "foreign", "table", "link", "link to ours", "nowhere", "folder", "no record")
(FOLDER / "in.txt").write_text("the dog\na cat\n")
(FOLDER / "none.txt").write_text("")


def one(data: bytes) -> None:
    choices = Choices(data)
    suffix, kind = choices.choice(SUFFIXES), choices.choice(KINDS)
    run = Run(
        quiet=True, overwrite=choices.random() < 0.3, append=choices.random() < 0.3, resume=choices.random() < 0.3
    )
    source = choices.choice(("in.txt", "in.txt", "none.txt"))
    place = FOLDER / "case"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    target = make(place / f"x{suffix}", kind)
    before = read(place)
    settings = EmbedConfig(normalize=choices.random() < 0.5)
    said = check_contract(lambda: embed_file(RUNTIME, str(FOLDER / source), target, settings, run))
    after = read(place)
    theirs = kind not in ("absent", "ours")
    added = run.append and kind in ("table", "changed", "no record")
    if isinstance(said, str) and {name: after.get(name) for name in before} != before:
        raise Finding(f"{kind}{suffix}: refused, and changed all the same: {said}")
    if (
        theirs
        and not run.overwrite
        and not added
        and not isinstance(said, str)
        and after.get(target.name) != before[target.name]
    ):
        raise Finding(f"{kind}{suffix}: replaced without --overwrite: {run}")
    if (
        source == "none.txt"
        and target.name in before
        and after.get(target.name) != before[target.name]
        and not run.append
    ):
        raise Finding(f"{kind}{suffix}: an empty result replaced a file: {run}")
    if added and kind == "table" and not isinstance(said, str) and read_customers(target) != [(7,)]:
        raise Finding("a table of others is gone")


def make(target: Path, kind: str) -> Path:
    if kind in ("ours", "changed", "table", "link to ours", "no record"):
        embed_file(RUNTIME, str(FOLDER / "in.txt"), target, EmbedConfig(), Run(quiet=True))
    if kind == "changed":
        target.write_bytes(target.read_bytes() + b"\0")
    elif kind == "no record":
        target.with_name(target.name + ".run.json").unlink()
    elif kind == "table" and target.suffix == ".db":
        with sqlite3.connect(target) as db:
            db.execute("CREATE TABLE customers AS SELECT 7")
        db.close()
    elif kind in ("foreign", "table"):
        target.write_bytes(b"theirs")
    elif kind == "link to ours":
        shutil.move(target, target.with_name("other"))
        target.symlink_to("other")
    elif kind == "link":
        target.with_name("other").write_bytes(b"theirs")
        target.symlink_to("other")
    elif kind == "nowhere":
        target.symlink_to("absent")
    elif kind == "folder":
        target.mkdir()
    return target


def read(place: Path) -> dict[str, bytes]:
    """The content of each file, and where each link leads."""
    found = {}
    for path in place.iterdir():
        if path.is_symlink():
            found[path.name] = os.readlink(path).encode()
        else:
            found[path.name] = b"folder" if path.is_dir() else path.read_bytes()
    return found


def read_customers(path: Path) -> list[tuple[int]]:
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT * FROM customers").fetchall()
    db.close()
    return found


def seeds() -> list[bytes]:
    return [
        bytes([s, k, *more]) for s in range(len(SUFFIXES)) for k in range(len(KINDS)) for more in ((255,) * 9, (0,) * 9)
    ]
