"""A plugin of pytest that prints processor seconds by kind of cost: ``pytest -p costs -n 2``.

A test counts once, under the first kind whose event it raises. The seconds include its fixtures and its children.
"""

import resource
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

KINDS = {  # kind: (event of the interpreter, how one of its words begins)
    "browsers": ("subprocess.Popen", ("chrom", "playwright")),
    "installations, wheels": ("subprocess.Popen", ("pip", "build", "venv", "setup.py")),
    "compilations": ("subprocess.Popen", ("gcc", "cc", "clang", "ptxas", "build_ext")),
    "servers": ("socket.bind", ("",)),
    "other processes": ("subprocess.Popen", ("",)),
    "imports of transformers": ("import", ("transformers",)),
    "imports of torch": ("import", ("torch",)),
}
REST = "computation in the test's process"
START = pytest.StashKey[float]()
seen: set[str] = set()
of_kind: dict[str, list[float]] = defaultdict(list)


def note_event(event: str, arguments: tuple[Any, ...]) -> None:
    for kind, (raised, names) in KINDS.items():
        if raised == event:
            words = arguments[1] if event == "subprocess.Popen" else arguments[:1]
            if any(str(word).rpartition("/")[2].startswith(names) for word in words):
                seen.add(kind)


def count_seconds() -> float:
    """Return the processor seconds of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def pytest_configure() -> None:
    sys.addaudithook(note_event)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        kind = next((kind for kind in KINDS if kind in seen), REST)
        report.user_properties = [*item.user_properties, ("cost", (kind, count_seconds() - item.stash[START]))]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    seen.clear()
    item.stash[START] = count_seconds()
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for kind, seconds in (cost for name, cost in report.user_properties if name == "cost"):
        of_kind[kind].append(seconds)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line("| kind | tests | processor seconds |\n| --- | ---: | ---: |")
    for kind, costs in sorted(of_kind.items(), key=lambda pair: -sum(pair[1])):
        terminalreporter.write_line(f"| {kind} | {len(costs)} | {sum(costs):.0f} |")
