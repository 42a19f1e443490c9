"""A plugin of pytest: skip the tests and files that need a library of an extra, if it is not installed."""

import re
from importlib.util import find_spec

import pytest

from support.places import ROOT

EXTRAS = re.search(r"^\[project\.optional.*?^\[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.S | re.M)[0]
LIBRARIES = {name.replace("-", "_") for name in re.findall(r'"([a-z][\w-]*)', EXTRAS)} | {"regex", "sklearn"}


def find_absent(error):
    """Return the library that an error says is not installed, or None."""
    while error is not None:
        said = re.search(r"needs (\w+).*, which is not installed", str(error))
        name = said[1] if said else (getattr(error, "name", None) or "").partition(".")[0]
        if name in LIBRARIES and find_spec(name) is None:
            return name
        error = error.__cause__
    return None


def skip(report, call):
    if report.failed and (name := find_absent(call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (report.nodeid.partition("::")[0], 0, f"needs {name}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return skip(report, report.call)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return skip((yield), call)
