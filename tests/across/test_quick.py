"""``pytest --cases N`` keeps N cases of each test, and pytest leaves the slow ones out."""

from types import SimpleNamespace

import gate

from support.places import TESTS
from support.quick import chosen, commit, touched

NAMES = [
    *(f"a.py::f[{i}]" for i in range(20)),
    "b.py::f[1]",
    "a.py::g",
    "b.py::C::f[1]",
    "c.py::each[1]",
    "c.py::each[2]",
]


def item(name):
    mark = "each[" in name or None
    return SimpleNamespace(nodeid=name, path=TESTS / name.partition("::")[0], get_closest_marker=lambda _: mark)


def names(most, seed="1", whole=()):
    return [item.nodeid for item in chosen([*map(item, NAMES)], most, seed, whole)]


def test_the_first_case_of_each_test_is_kept_and_others_are_drawn():
    first = ["a.py::f[0]", "b.py::f[1]", "a.py::g", "b.py::C::f[1]", "c.py::each[1]", "c.py::each[2]"]
    assert names(1) == first
    drawn = {tuple(name for name in names(2, str(seed)) if name not in first) for seed in range(200)}
    assert all(len(names) == 1 for names in drawn)
    assert {name for (name,) in drawn} == set(NAMES[1:20]), "pushes walk through all"
    assert names(2) == names(2)
    assert names(100) == NAMES


def test_the_tests_of_what_changed_come_first_with_every_case(monkeypatch):
    monkeypatch.setattr(gate, "changed", lambda: ["fastflow/atomic.py", "tests/a.py", "README.md"])
    files = touched()
    assert files == {TESTS / "test_atomic.py", TESTS / "a.py"}
    assert names(1, whole=files)[:21] == [name for name in NAMES if name.startswith("a.py")]
    assert names(1, whole=files)[21:] == ["b.py::f[1]", "b.py::C::f[1]", "c.py::each[1]", "c.py::each[2]"]


def test_it_is_an_option_and_slow_tests_are_left_out(pytestconfig):
    assert pytestconfig.getoption("--cases") >= 0
    assert "not slow" in " ".join(pytestconfig.getini("addopts"))
    assert len(commit()) >= 5
