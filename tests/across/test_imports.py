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


C = ROOT / "kernels" / "c"
INCLUDE = re.compile(r'#include "([\w./]+)"')
# a definition of a function or a variable, or the name that a file gives to one that it includes
DEFINITION = re.compile(
    r"^(?!static|extern|typedef)\w[\w *]*?\b(ff_\w+)(?:\([^;{]*\)\s*\{|[\[\]]*(?: =|;))|^#define \w+ (ff_\w+)$", re.M
)


def included(path: Path) -> set[Path]:
    """The files of ours that a file of C includes, beside it or from ``kernels/c``."""
    names = INCLUDE.findall(path.read_text(encoding="utf-8"))
    return {next(place / name for place in (path.parent, C) if (place / name).exists()) for name in names}


def unit(path: Path) -> str:
    """A file of C and the pieces (.inc) that it includes, without comments."""
    pieces = sorted(piece for piece in included(path) if piece.suffix == ".inc")
    return re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S) + "".join(map(unit, pieces))


def definitions(text: str) -> set[str]:
    return {plain or named for plain, named in DEFINITION.findall(text)}


def links(units: dict[str, str]) -> dict[str, set[str]]:
    """File -> the other files that define the functions and variables that it names."""
    named = {name: set(re.findall(r"\bff_\w+", text)) for name, text in units.items()}
    return {name: {o for o in units if o != name and named[name] & definitions(units[o])} for name in units}


UNITS = {path.relative_to(C).as_posix(): unit(path) for path in sorted(C.rglob("*.c"))}


def test_no_circle_among_included_files_of_c():
    files = {path for pattern in ("*.c", "*.h", "*.inc") for path in C.rglob(pattern)}
    graph = {path.relative_to(C).as_posix(): {o.relative_to(C).as_posix() for o in included(path)} for path in files}
    assert sum(map(len, graph.values())) > 100
    assert circle(graph) == []


def test_a_circle_of_linked_files_is_found():
    units = {
        "a.c": "int ff_a(void)\n{\n    return ff_b(1);\n}\n",
        "b.c": "#define BODY ff_b\nint BODY(int x)\n{\n    return x + *ff_table;\n}\n",
        "c.c": "const int ff_table[] = {1};\nstatic int ff_own(void)\n{\n    return 0;\n}\n",
        "d.c": "__thread ff_state ff_mine;\nint *ff_own(int x,\n            int y)\n{\n    return ff_a();\n}\n",
    }
    graph = links(units)
    assert graph == {"a.c": {"b.c"}, "b.c": {"c.c"}, "c.c": {"d.c"}, "d.c": {"a.c"}}
    assert circle(graph)
    assert circle(links(units | {"c.c": "const int ff_table[] = {1};\n"})) == []


def test_every_declared_function_of_c_is_defined_once():
    """So no call of one is missing from the arrows below."""
    headers = "".join(re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S) for path in C.rglob("*.h"))
    inline = set(re.findall(r"(?:static inline|FF_SCALAR)[\w *]* (ff_\w+)\(", headers))
    declared = set(re.findall(r"\b(ff_\w+)\(", headers)) | set(re.findall(r"FF_DECLARE\((ff_\w+)\)", headers))
    files = {name: [file for file, text in UNITS.items() if name in definitions(text)] for name in declared - inline}
    assert len(files) > 60
    assert {name: found for name, found in files.items() if len(found) != 1} == {}


def test_no_circle_among_linked_files_of_c():
    graph = links(UNITS)
    assert sum(map(len, graph.values())) > 40
    assert circle(graph) == []


@pytest.mark.parametrize("room", ABOVE)
def test_dependencies_point_one_way(room):
    """Commands may import what they start, inside their functions."""
    for name, path in KNOWN.items():
        if room_of(name) == room:
            found = imported(path, KNOWN, anywhere=room == "fastflow.kernels")
            assert not [other for other in found if room_of(other) in ABOVE[room]], name
