"""``pytest --cases N``: the first case of each test, and N - 1 drawn by the commit, so that pushes walk through all.

A test marked ``each`` keeps every case. So do the tests of changed files, which come first. A refusal keeps one of
each row of its table: a test whose name ends with "refused", or a table with a column ``message`` or ``sentence``.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from fastflow.version import __version__

from support.places import ROOT, TESTS

COMPILED = (".c", ".h", ".inc", ".pxi", ".pyx")


def pick_cases(items: Sequence[pytest.Item], most: int, seed: str, whole: Collection[Path] = ()) -> list[pytest.Item]:
    """Return the first item of each test function, ``most`` - 1 drawn by ``seed``, and all of the files ``whole``."""
    of_test = defaultdict(list)
    for item in items:
        of_test[item.nodeid.partition("[")[0]].append(item)
    kept: set[str] = set()
    for test, (first, *others) in of_test.items():
        drawn = others
        if not first.get_closest_marker("each") and first.path not in whole:
            drawn = random.Random(f"{seed} {test}").sample(others, min(most - 1, len(others)))
        kept.update(item.nodeid for item in (first, *drawn, *pick_refusals(test, of_test[test])))
    return sorted((item for item in items if item.nodeid in kept), key=lambda item: item.path not in whole)


def pick_refusals(test: str, items: Sequence[pytest.Item]) -> Collection[pytest.Item]:
    """Return an item of each row of a table of refusals, whichever backend; none of another table."""
    rows: dict[tuple[int, ...], pytest.Item] = {}
    for item in items if len(items) > 1 else ():
        given = {name: value for name, value in item.callspec.params.items() if name != "backend"}
        if test.endswith("refused") or given.keys() & {"message", "sentence"}:
            rows.setdefault(tuple(map(id, given.values())), item)
    return rows.values()


def list_touched() -> set[Path]:
    """Return the files of tests that changed, or that import a changed module; of C, all tests of the kernels."""
    from gate import list_changed  # here, for a check that runs without the other helpers
    from test_mirror import MODULES, pick_tests

    files = list_changed() or []
    tests = {test for file in files if file in MODULES for test in pick_tests(file)}
    if any(file.startswith("kernels/") and file.endswith(COMPILED) for file in files):
        tests |= {path.relative_to(TESTS).as_posix() for path in (TESTS / "kernels").glob("test_*.py")}
    return {TESTS / test for test in tests} | {ROOT / file for file in files if file.startswith("tests/")}


def read_commit() -> str:
    """Return the hash of the commit, or the version outside git."""
    from gate import git

    return git("rev-parse", "HEAD") or __version__
