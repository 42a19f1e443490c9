"""The arrows among files: imports of Python, includes and links of C."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from support.places import ROOT

ROOMS = {"fastflow": "fastflow", "kernels": "fastflow.kernels", "train": "fastflow.train", "bench": "fastflow.bench"}


def modules() -> dict[str, Path]:
    found = {}
    for room, package in ROOMS.items():
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT / room).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = path
    return found


def imported(path: Path, known: dict[str, Path], anywhere: bool = True) -> set[str]:
    """The modules of ours that a file imports, for types too; not ``anywhere``: outside of functions."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{name.name}" for name in node.names]
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & set(known)


KNOWN = modules()
GRAPH = {name: imported(path, KNOWN) - {name} for name, path in KNOWN.items()}


def room_of(name: str) -> str:
    return next(room for room in reversed(list(ROOMS.values())) if f"{name}.".startswith(f"{room}."))


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


C = ROOT / "kernels" / "c"
INCLUDE = re.compile(r'#include "([\w./]+)"')
# a definition of a function or a variable, or the name that a file gives to one that it includes
DEFINITION = re.compile(
    r"^(?!static|extern|typedef)\w[\w *]*?\b(ff_\w+)(?:\([^;{]*\)\s*\{|[\[\]]*(?: =|;))|^#define \w+ (ff_\w+)$", re.M
)


def included(path: Path) -> set[Path]:
    names = INCLUDE.findall(path.read_text(encoding="utf-8"))
    return {next(place / name for place in (path.parent, C) if (place / name).exists()) for name in names}


def unit(path: Path) -> str:
    """A file of C and the pieces (.inc) that it includes, without comments."""
    pieces = sorted(piece for piece in included(path) if piece.suffix == ".inc")
    return re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S) + "".join(map(unit, pieces))


def definitions(text: str) -> set[str]:
    return {plain or named for plain, named in DEFINITION.findall(text)}


def links(units: dict[str, str]) -> dict[str, set[str]]:
    named = {name: set(re.findall(r"\bff_\w+", text)) for name, text in units.items()}
    return {name: {o for o in units if o != name and named[name] & definitions(units[o])} for name in units}


UNITS = {path.relative_to(C).as_posix(): unit(path) for path in sorted(C.rglob("*.c"))}


def includes() -> dict[str, set[str]]:
    files = {path for pattern in ("*.c", "*.h", "*.inc") for path in C.rglob(pattern)}
    return {path.relative_to(C).as_posix(): {o.relative_to(C).as_posix() for o in included(path)} for path in files}
