"""Imports: no circle among files, in Python or in C, and dependencies that point one way."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {"fastflow": "fastflow", "kernels": "fastflow.kernels", "train": "fastflow.train", "bench": "fastflow.bench"}
ABOVE = {  # a room -> those that it may not import
    "fastflow.kernels": ("fastflow",),
    "fastflow": ("fastflow.bench",),
    "fastflow.train": ("fastflow.bench",),
}


def modules() -> dict[str, Path]:
    """Name -> file, of all that is installed."""
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
    """The names of a circle; none: an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()})
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_circle_in_python():
    assert len(GRAPH) > 250
    assert sum(map(len, GRAPH.values())) > 800
    assert circle(GRAPH) == []


def test_no_circle_in_c():
    files = {path.name: path for pattern in ("*.c", "*.h", "*.inc") for path in (ROOT / "kernels" / "c").rglob(pattern)}
    names = {
        name: set(re.findall(r'#include "(?:[\w./]*/)?([\w.]+)"', path.read_text())) for name, path in files.items()
    }
    assert sum(map(len, names.values())) > 50
    assert circle({name: found & set(files) - {name} for name, found in names.items()}) == []


@pytest.mark.parametrize("room", ABOVE)
def test_dependencies_point_one_way(room):
    """Commands may import what they start, inside their functions."""
    for name, path in KNOWN.items():
        if room_of(name) == room:
            found = imported(path, KNOWN, anywhere=room == "fastflow.kernels")
            assert not [other for other in found if room_of(other) in ABOVE[room]], name
