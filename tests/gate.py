"""The gate, once the package is installed: what finds faults first comes first.

    python tests/gate.py            quick tests with the types beside them, four cases of each slow test, a whole script
                                    of each kind, and the groups whose files changed since the main branch or the last
                                    commit
    python tests/gate.py --night    every case of every test, the libraries that take our models, and the C for macOS

It goes on after a failure, prints what each part took, and exits with 1 if one failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).parents[1]
TWO = ("-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
LONG = "slow or whole or compile"
SLOW = "slow and not whole and not compile and not doors"
# one whole script of each kind: a page as a reader types it, a browser, a fuzz target, an attack, a rehearsal for a GPU
WHOLE = (
    "tests/across/test_docs.py::test_every_command_and_program_runs_as_a_reader_types_it[README.md]",
    "tests/serve/test_page_browser.py::test_it_compares_two_texts",
    "tests/across/test_fuzz.py::test_python_targets_hold_on_fixed_inputs[files]",
    "tests/across/test_attacks.py::test_no_fault_is_found[writers-8]",
    "tests/across/test_native.py::test_every_product_is_near_float64",
)


class Group(NamedTuple):
    """Long tests, beside those of the changed module's room, that run whole if one of ``paths`` (fnmatch) changed."""

    paths: tuple[str, ...]
    tests: tuple[str, ...] = ()
    command: str = ""


GROUPS = {
    "triton": Group(("kernels/*triton*", "kernels/launch.py", "fastflow/backends/gpu/*", "bench/*gpu*", "tests/triton*",
                     "bench/research/triton*", "tests/support/triton*"),
                    ("tests/kernels/test_triton.py", "tests/across/test_gpu_script.py")),
    "c": Group(("kernels/c/*", "kernels/*.pyx", "setup.py", "tests/native/*"),
               ("tests/kernels", "tests/across/test_native.py")),
    "tokens": Group(("tests/fuzz/*", "kernels/c/tokens/*", "kernels/tokens/*"), ("tests/across/test_fuzz.py",)),
    "package": Group(("setup.py", "pyproject.toml", "MANIFEST.in", "constraints.txt", "release/*",
                      "fastflow/default/*", "fastflow/small/*", "fastflow/untuned/*"),
                     ("tests/across/test_packaging.py", "tests/across/test_release.py")),
    "pages": Group(("docs/*", "README.md", "examples/*"), ("tests/across/test_docs.py",)),
    "server": Group(("fastflow/serve/*",), ("tests/across/test_clients.py", "tests/across/test_attacks.py")),
    "files": Group(("fastflow/files/*", "fastflow/atomic.py", "tests/attacks/*"),
                   ("tests/faults", "tests/across/test_attacks.py")),
    "ray": Group(("fastflow/integrations/*ray*",), ("tests/integrations",)),
    "doors": Group(("fastflow/integrations/*", "fastflow/compatibility.py", "constraints.txt"),
                   command="pip install -q -e '.[doors]' -c constraints.txt && just doors"),
    "old libraries": Group(("fastflow/model/tokenizer*", "tests/support/fields.py", "tests/old-libraries.txt"),
                           command="just old-libraries"),
}  # fmt: skip
Part = tuple[str, list[str]]


def git(*words: str) -> str:
    """Return what git prints of the checkout; "" if it fails or is absent."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def list_changed() -> list[str] | None:
    """Return the files changed since FASTFLOW_BASE, or where this branch left main, or the last push; new ones too.

    None without git, or if the base is not in this clone.
    """
    base = os.environ.get("FASTFLOW_BASE") or git("merge-base", "HEAD", "origin/main")
    if base in ("", git("rev-parse", "HEAD")):
        base = git("rev-parse", "-q", "--verify", "origin/main@{1}") or git("rev-parse", "HEAD~1")
    if git("cat-file", "-t", base) != "commit":
        return None
    changed = git("diff", "--name-only", "--no-renames", base), git("ls-files", "--others", "--exclude-standard")
    return "\n".join(changed).split()


def pick_groups(files: list[str] | None) -> dict[str, Group]:
    """Return the groups that guard one of ``files``; None: all."""
    if files is None:
        return GROUPS
    return {n: group for n, group in GROUPS.items() if any(fnmatch(f, path) for f in files for path in group.paths)}


def list_long(files: list[str] | None) -> set[str]:
    """Return the files of tests in the room of each changed module that import it."""
    from test_mirror import MODULES, pick_tests

    return {f"tests/{test}" for file in files or () if file in MODULES for test in pick_tests(file)}


def list_day(groups: dict[str, Group], own: Collection[str] = ()) -> Iterator[Part]:
    yield "quick", ["pytest", *TWO]
    yield "slow, four cases", ["pytest", *TWO, "-m", SLOW, "--cases", "4"]
    yield "one of each kind", ["pytest", *TWO, "-m", "", *WHOLE]
    tests = sorted({*own, *(path for group in groups.values() for path in group.tests)})
    if tests:
        yield f"groups: {', '.join(['own', *groups])}", ["pytest", *TWO, "-m", LONG, "--cases", "0", *tests]
    for name, group in groups.items():
        if group.command:
            yield name, ["bash", "-c", group.command]


def list_night() -> Iterator[Part]:
    yield "every quick case", ["pytest", *TWO, "--cases", "0"]
    yield "every long test", ["pytest", *TWO, "-m", LONG, "--cases", "0"]
    for name in ("doors", "old libraries"):
        yield name, ["bash", "-c", GROUPS[name].command]
    yield "macOS, compiled", ["bash", "-c", "pip install -q ziglang -c constraints.txt && tests/macos.sh"]


def run(name: str, command: list[str]) -> tuple[str, float, bool]:
    """Return (name, seconds, whether it passed)."""
    click.secho(f"== {name}: {' '.join(command)}", bold=True)
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=False)
    return name, time.monotonic() - start, done.returncode == 0


@click.command(help=__doc__.replace("    python", "\b\n    python", 1))
@click.option("--night", is_flag=True, help="Every case of every test.")
def main(night: bool) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each of two processes: more would wait for each other
    results = [run("lint", ["bash", "-c", "ruff check -q . && ruff format --check -q . && codespell"])]
    types, start = subprocess.Popen(["tests/typed.sh"], cwd=ROOT, stdout=subprocess.PIPE, text=True), time.monotonic()
    files = list_changed()
    parts = [*list_night()] if night else [*list_day(pick_groups(files), list_long(files))]
    results.append(run(*parts[0]))
    said, _ = types.communicate()
    print(said)
    results.append(("types, beside", time.monotonic() - start, types.returncode == 0))
    results += [run(*part) for part in parts[1:]]
    print("\n| part | seconds | |\n| --- | ---: | --- |")
    for name, seconds, passed in results:
        print(f"| {name} | {seconds:.0f} | {'' if passed else 'FAILED'} |")
    sys.exit(not all(passed for _, _, passed in results))


if __name__ == "__main__":
    main()
