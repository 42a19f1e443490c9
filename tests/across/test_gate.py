"""The gate runs what a change touches: every long test belongs to a group, and every group to files that exist."""

import re
from fnmatch import fnmatch

import pytest
from gate import GROUPS, WHOLE, by_day, by_night, touched

from support.places import ROOT, TESTS


def tracked():
    folders = ("fastflow", "kernels", "train", "bench", "tests", "docs", "examples", "release")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path.relative_to(ROOT).as_posix() for path in (*paths, *ROOT.glob("*.*"))]


def test_every_path_of_a_group_is_there():
    known = tracked()
    for name, group in GROUPS.items():
        assert [path for path in group.paths if not any(fnmatch(file, path) for file in known)] == [], name
        assert [path for path in group.tests if not (ROOT / path).exists()] == [], name
        assert bool(group.tests) != bool(group.command), name


def test_every_file_with_a_long_test_belongs_to_a_group():
    guarded = tuple(path for group in GROUPS.values() for path in group.tests)
    long = re.compile(r"mark\.(whole|compile)\b")
    files = [f"tests/{p.relative_to(TESTS)}" for p in TESTS.rglob("test_*.py") if long.search(p.read_text("utf-8"))]
    alone = {"tests/across/test_gate.py", "tests/across/test_types.py", "tests/across/test_site.py"}  # in the night
    assert len(files) > 15
    assert [file for file in files if not file.startswith(guarded) and file not in alone] == []


def test_one_of_each_kind_is_there():
    for name in WHOLE:
        file, _, rest = name.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not rest or f"def {rest.partition('[')[0]}(" in text, name


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["kernels/c/flow/body.inc"], ["c"]),
        (["kernels/c/tokens/words.c"], ["c", "tokens"]),
        (["kernels/flow/triton_parts.py"], ["triton"]),
        (["docs/embed.md", "train/command.py"], ["pages", "training"]),
        (["CHANGELOG.md"], []),
        (None, list(GROUPS)),
    ],
)
def test_a_change_touches_its_groups(files, names):
    assert list(touched(files)) == names


def test_the_parts_of_a_day_and_of_a_night():
    assert [name for name, _ in by_day({})] == ["quick", "slow, four cases", "one of each kind"]
    groups = [name for name, _ in by_day(touched(["constraints.txt"]))]
    assert groups[-2:] == ["groups: package, doors", "doors"]
    assert len(list(by_night())) == 4
