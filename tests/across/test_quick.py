"""``pytest --cases N`` keeps N cases of each test, and pytest leaves the slow ones out."""

from types import SimpleNamespace

import gate

from support.places import TESTS
from support.quick import changed_first, chosen, commit

NAMES = [
    *(f"a.py::f[{i}]" for i in range(20)),
    "b.py::f[1]",
    "a.py::g",
    "b.py::C::f[1]",
    "c.py::each[1]",
    "c.py::each[2]",
]


def names(most, seed="1"):
    items = [
        SimpleNamespace(nodeid=name, get_closest_marker=lambda mark, name=name: "each[" in name or None)
        for name in NAMES
    ]
    return [item.nodeid for item in chosen(items, most, seed)]


def test_the_first_case_of_each_test_is_kept_and_others_are_drawn():
    first = ["a.py::f[0]", "b.py::f[1]", "a.py::g", "b.py::C::f[1]", "c.py::each[1]", "c.py::each[2]"]
    assert names(1) == first
    drawn = {tuple(name for name in names(2, str(seed)) if name not in first) for seed in range(200)}
    assert all(len(names) == 1 for names in drawn)
    assert {name for (name,) in drawn} == set(NAMES[1:20]), "pushes walk through all"
    assert names(2) == names(2)
    assert names(100) == NAMES


def test_the_tests_of_what_changed_come_first(monkeypatch):
    monkeypatch.setattr(gate, "changed", lambda: ["fastflow/replacing.py", "tests/test_values.py", "README.md"])
    paths = ["across/test_docs.py", "test_replacing.py", "test_values.py", "model/test_tokens.py"]
    items = [SimpleNamespace(path=TESTS / path) for path in paths]
    changed_first(items)
    assert [item.path.name for item in items] == [
        *("test_replacing.py", "test_values.py"), *("test_docs.py", "test_tokens.py")
    ]  # fmt: skip


def test_it_is_an_option_and_slow_tests_are_left_out(pytestconfig):
    assert pytestconfig.getoption("--cases") >= 0
    assert "not slow" in " ".join(pytestconfig.getini("addopts"))
    assert len(commit()) >= 5
