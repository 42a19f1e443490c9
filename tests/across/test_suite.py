"""The suite's own rules: groups of the gate, cases that are kept, and limits that count processor time."""

import re
import signal
import sys
from fnmatch import fnmatch
from types import SimpleNamespace

import absent
import gate
import hypothesis
import pytest
from break_rules import break_rule, find_rules
from conftest import pytest_terminal_summary
from gate import GROUPS, WHOLE
from test_mirror import MODULES, folder_of

from fastflow.errors import FastflowError

from support.places import ROOT, TESTS
from support.processes import run_limited
from support.quick import list_touched, pick_cases, read_commit


def list_files():
    folders = ("fastflow", "kernels", "train", "bench", "tests", "docs", "examples", "release")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path.relative_to(ROOT).as_posix() for path in (*paths, *ROOT.glob("*.*"))]


def test_every_path_of_a_group_is_there():
    known = list_files()
    for name, group in GROUPS.items():
        assert [path for path in group.paths if not any(fnmatch(file, path) for file in known)] == [], name
        assert [path for path in group.tests if not (ROOT / path).exists()] == [], name
        assert bool(group.tests) != bool(group.command), name


def test_every_file_with_a_long_test_belongs_to_a_group():
    rooms = {f"tests/{folder_of(module).relative_to(TESTS)}/" for module in MODULES} - {"tests/./"}
    guarded = (*rooms, *(path for group in GROUPS.values() for path in group.tests))
    long = re.compile(r"mark\.(whole|compile)\b")
    files = [f"tests/{p.relative_to(TESTS)}" for p in TESTS.rglob("test_*.py") if long.search(p.read_text("utf-8"))]
    alone = {"tests/across/test_suite.py", "tests/across/test_types.py", "tests/across/test_site.py"}  # in the night
    assert len(files) > 15
    assert [file for file in files if not file.startswith(guarded) and file not in alone] == []


def test_the_base_is_where_a_branch_left_main_or_what_was_there_before_a_push(tmp_path, monkeypatch):
    def git(*words):
        return run_limited(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words]).stdout.strip()

    monkeypatch.setattr(gate, "ROOT", tmp_path)
    monkeypatch.delenv("FASTFLOW_BASE", raising=False)
    assert gate.list_changed() is None
    git("init")
    for name in ("first", "second", "third", "new"):
        (tmp_path / name).write_text(name)
        if name != "new":
            git("add", ".")
            git("commit", "-m", name)
    found = [gate.list_changed()]
    for commit in ("HEAD~2", "HEAD"):
        git("update-ref", "-m", "push", "refs/remotes/origin/main", commit)
        found.append(gate.list_changed())
    for commit in (git("rev-parse", "HEAD~1"), "0" * 40):  # of GitHub; zeros for a branch that is new
        monkeypatch.setenv("FASTFLOW_BASE", commit)
        found.append(gate.list_changed())
    assert found == [["third", "new"], *[["second", "third", "new"]] * 2, ["third", "new"], None]


def test_rules_of_c_are_found_and_broken_by_their_number():
    text = '#if 1 < 2\nint f(int a)\n{\n    /* a < b */\n    if (a < 9 && g("<"))\n        return a;\n}\n'
    whole, less, number, both = find_rules("x.c", text)
    assert [rule.said[-12:] for rule in (whole, both)] == ["the contrary", '[&& -> ||] g("<")'[-12:]]
    assert "[9 -> (9 + 1)]" in number.said
    assert 'if ((ff_broken == 7 ? (a <= 9 && g("<")) : (a < 9 && g("<"))))\n' in break_rule(text, less, 7)
    text = "def f(a):\n    if a == 2 or g(\n        '<',\n    ):  # 3\n        x = 1\n"
    broken = "    if (ff_broken == 7 and (a != 2 or g(\n        '<',\n    )) or ff_broken != 7 and (a == 2 or g("
    assert any(broken in break_rule(text, rule, 7) for rule in find_rules("x.pxi", text))
    assert [rule.said for rule in find_rules("x.py", text)][-1] == "[1 -> (1 + 1)]"


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
        (["docs/embed.md", "train/run.py"], ["pages"]),
        (["CHANGELOG.md"], []),
        (None, list(GROUPS)),
    ],
)
def test_a_change_touches_its_groups(files, names):
    assert list(gate.pick_groups(files)) == names


def test_the_parts_of_a_day_and_of_a_night():
    assert [name for name, _ in gate.list_day({})] == ["quick", "slow, four cases", "one of each kind"]
    groups = [name for name, _ in gate.list_day(gate.pick_groups(["constraints.txt"]))]
    assert groups[-2:] == ["groups: own, package, doors", "doors"]
    assert gate.list_long(["fastflow/backends/choose.py", "README.md"]) >= {"tests/backends/test_choose.py"}
    assert list(gate.list_day({}, {"tests/x.py"}))[-1][1][-1] == "tests/x.py"
    assert len(list(gate.list_night())) == 5


NAMES = [
    *(f"a.py::f[{i}]" for i in range(20)),
    "b.py::f[1]",
    "a.py::g",
    "b.py::C::f[1]",
    *("c.py::each[1]", "c.py::each[2]"),
]


def item(name, **params):
    mark, spec = "each[" in name or None, SimpleNamespace(params=params)
    path = TESTS / name.partition("::")[0]
    return SimpleNamespace(nodeid=name, path=path, get_closest_marker=lambda _: mark, callspec=spec)


def names(most, seed="1", whole=()):
    return [item.nodeid for item in pick_cases([*map(item, NAMES)], most, seed, whole)]


def test_the_first_case_of_each_test_is_kept_and_others_are_drawn():
    first = ["a.py::f[0]", "b.py::f[1]", "a.py::g", "b.py::C::f[1]", "c.py::each[1]", "c.py::each[2]"]
    assert names(1) == first
    drawn = {tuple(name for name in names(2, str(seed)) if name not in first) for seed in range(200)}
    assert all(len(names) == 1 for names in drawn)
    assert {name for (name,) in drawn} == set(NAMES[1:20]), "pushes walk through all"
    assert names(2) == names(2)
    assert names(100) == NAMES


def test_each_row_of_a_table_of_refusals_is_kept_for_one_backend():
    for test, column in (("f", "message"), ("f", "sentence"), ("it_is_refused", "x"), ("f", "x")):
        items = [item(f"a.py::{test}[{b}-{x}]", backend=b, **{column: x}) for b in "pq" for x in "abc"]
        rows = ["p-a", "p-b", "p-c"] if (test, column) != ("f", "x") else ["p-a"]
        assert [kept.nodeid for kept in pick_cases(items, 1, "1")] == [f"a.py::{test}[{row}]" for row in rows]


def test_a_failed_case_is_named_with_the_command_that_runs_it_again():
    reports = {"failed": [item("a.py::f"), item("a.py::f[x y]")], "error": [item("a.py::f[x y]")]}
    lines = []
    pytest_terminal_summary(SimpleNamespace(getreports=reports.get, write_line=lines.append))
    assert lines == ["The same cases again: pytest -m '' 'a.py::f[x y]'"]


def test_the_tests_of_what_changed_come_first_with_every_case(monkeypatch):
    monkeypatch.setattr(gate, "list_changed", lambda: ["fastflow/atomic.py", "tests/a.py", "README.md"])
    files = list_touched()
    assert files == {TESTS / "test_values.py", TESTS / "a.py"}
    monkeypatch.setattr(gate, "list_changed", lambda: ["kernels/c/flow/body.inc"])
    assert list_touched() == set((TESTS / "kernels").glob("test_*.py"))
    assert names(1, whole=files)[:21] == [name for name in NAMES if name.startswith("a.py")]
    assert names(1, whole=files)[21:] == ["b.py::f[1]", "b.py::C::f[1]", "c.py::each[1]", "c.py::each[2]"]


def test_it_is_an_option_and_slow_tests_are_left_out(pytestconfig):
    assert pytestconfig.getoption("--cases") >= 0
    assert "not slow" in " ".join(pytestconfig.getini("addopts"))
    assert len(read_commit()) >= 5
    assert hypothesis.settings().deadline is None


def test_only_a_library_of_an_extra_that_is_not_installed_skips_a_test(monkeypatch):
    monkeypatch.setattr(absent, "find_spec", lambda name: None if name == "torch" else object())
    errors = [ModuleNotFoundError("", name="torch.nn"), FastflowError("fit needs torch, which is not installed: run x")]
    assert [absent.find_absent(error) for error in errors] == ["torch", "torch"]
    others = [ModuleNotFoundError("", name="numpyy"), ModuleNotFoundError("", name="pyarrow"), AssertionError("torch")]
    assert [absent.find_absent(error) for error in others] == [None] * 3


def test_no_test_gives_a_process_a_limit_of_the_clock():
    call = re.compile(r"subprocess\.run\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\btimeout=")
    own = {"break_rules.py"}  # a tool, that ends what runs for 15 minutes
    files = [path for path in TESTS.rglob("*.py") if path.name not in own]
    assert [path.name for path in files if call.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_a_process_that_waits_is_not_ended_and_one_that_computes_is():
    assert run_limited([sys.executable, "-c", "import time; time.sleep(1.5)"], seconds=1).returncode == 0
    done = run_limited([sys.executable, "-c", "print('begun', flush=True)\nwhile True: pass"], seconds=1)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "begun\n")
