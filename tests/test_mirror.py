"""The tests mirror the rooms of the product: ``fastflow/files/`` is tested in ``tests/files/``, ``train/`` by its name.

Behaviours of many rooms are in ``tests/across``, and what happens to them if disk, memory, clock or process fail in
``tests/faults``.
"""

import ast
from functools import cache
from pathlib import Path

from support.arrows import KNOWN, imported
from support.places import ROOT, TESTS

NO_ROOM = {"across", "attacks", "corpus", "faults", "fuzz", "native", "support", "triton_compile", "triton_interpret"}
MODULES = {  # without an __init__.py that has only a docstring
    path.relative_to(ROOT).as_posix(): name
    for name, path in KNOWN.items()
    if len(ast.parse(path.read_bytes()).body) > 1
}


def folder_of(module: str) -> Path:
    """The folder of the tests of ``module``, a path such as ``fastflow/files/embed.py``."""
    room, *parts = Path(module).parts
    return TESTS / (room if room != "fastflow" else parts[0] if len(parts) > 1 else "")


@cache
def imports_of(file: Path) -> set[str]:
    return imported(file, KNOWN)


def pick_tests(module: str) -> list[str]:
    """The files of tests in the room of ``module`` that import it; if none does, all of the room."""
    room = sorted(folder_of(module).glob("test_*.py"))
    own = [file for file in room if MODULES[module] in imports_of(file)] or room
    return [file.relative_to(TESTS).as_posix() for file in own]


def test_every_room_has_its_tests_and_every_test_a_room():
    rooms = {folder_of(module) for module in MODULES}
    assert [room for room in rooms if not list(room.glob("test_*.py"))] == [], "without tests"
    assert {path.parent for path in TESTS.rglob("test_*.py")} - rooms <= {TESTS / name for name in NO_ROOM}
    assert len(rooms) > 12
    assert len(MODULES) > 130


def test_a_module_is_tested_by_those_that_import_it():
    assert "train/test_recipe.py" in pick_tests("train/pipeline/recipe.py")
    assert pick_tests("fastflow/version.py")
    assert all(file.startswith("train/") for file in pick_tests("train/pipeline/vectors.py"))
