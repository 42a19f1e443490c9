"""``pytest --quick`` keeps one case of each test, and pytest leaves the slow ones out."""

from types import SimpleNamespace

from support.quick import first_cases


def test_the_first_case_of_each_test_is_kept():
    names = ["a.py::f[1]", "a.py::f[2]", "b.py::f[1]", "a.py::g", "a.py::f[x[0]]", "b.py::C::f[1]"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    kept, others = first_cases(items)
    assert [item.nodeid for item in kept] == ["a.py::f[1]", "b.py::f[1]", "a.py::g", "b.py::C::f[1]"]
    assert [item.nodeid for item in others] == ["a.py::f[2]", "a.py::f[x[0]]"]


def test_it_is_an_option_and_slow_tests_are_left_out(pytestconfig):
    assert pytestconfig.getoption("--quick") in (True, False)
    assert "not slow" in " ".join(pytestconfig.getini("addopts"))
