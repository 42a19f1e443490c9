"""The fuzzer's targets: each on its seeds and its corpus, those of Python for a minute where atheris is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from support.corpus import inputs, lines_of
from support.places import ROOT, TESTS

FUZZ, CORPUS = TESTS / "fuzz", TESTS / "corpus"
PYTHON = sorted(path.stem for path in (FUZZ / "targets").glob("*.py"))
NATIVE = sorted(path.stem for path in (FUZZ / "native").glob("*.c") if path.stem != "replay")
LARGE = 1 << 20  # bytes of all corpora


def run(*command: object, seconds: int = 600) -> str:
    """What a script prints; it must end well."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_corpora_are_small_and_of_targets():
    files = list(CORPUS.iterdir())
    assert {path.stem for path in files} <= {*PYTHON, *NATIVE}
    assert sum(path.stat().st_size for path in files) < LARGE
    assert all(inputs(path.stem) for path in files)
    said = [line for path in files for line in lines_of(path.stem) if line.startswith("#")]
    assert len(set(said)) == len(said) >= 8


@pytest.mark.whole
def test_python_targets_hold():
    """A minute of fuzzing, in which each begins with its seeds and its corpus; without atheris on these alone. The
    native ones take a clang and minutes to build, for the weekly run of five minutes.
    """
    if find_spec("atheris") is not None:
        said = run(FUZZ / "run.py", "--seconds", 60, "--python", seconds=1200)
        assert all(f"| {name} |" in said for name in PYTHON)
    else:
        assert all("inputs" in run(FUZZ / "fuzz.py", name, "--replay") for name in PYTHON)


@pytest.mark.whole
def test_native_targets_hold_on_their_corpora():
    said = run(FUZZ / "replay.py", "both", seconds=1200)
    assert all(f"both {name}: {len(set(inputs(name)))} inputs" in said for name in NATIVE)
