"""The fuzzer's targets, on their seeds, their corpora, and five minutes of inputs by one seed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from support.corpus import inputs, lines_of
from support.places import ROOT, TESTS
from support.processes import run_limited

FUZZ, CORPUS = TESTS / "fuzz", TESTS / "corpus"
sys.path.insert(0, str(FUZZ))

from building import fuzzing_compiler  # noqa: E402

PYTHON = sorted(path.stem for path in (FUZZ / "targets").glob("*.py"))
NATIVE = sorted(path.stem for path in (FUZZ / "native").glob("*.c") if path.stem != "replay")
LARGE = 1 << 20  # bytes of all corpora
CLANG = fuzzing_compiler()


def run(*command: object, seconds: int = 600) -> str:
    """What a script prints; it must end well."""
    done = run_limited([sys.executable, *command], seconds, cwd=ROOT)
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
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris: pip install -e '.[dev]'")
@pytest.mark.parametrize("name", PYTHON)
def test_python_targets_hold_on_fixed_inputs(name):
    assert f"| {name} |" in run(FUZZ / "run.py", "--fixed", "--python", "--only", name)


@pytest.mark.whole
@pytest.mark.skipif(find_spec("atheris") is not None, reason="they are fuzzed, which begins with these inputs")
@pytest.mark.parametrize("name", PYTHON)
def test_python_targets_hold_on_their_seeds_and_corpora(name):
    assert "inputs" in run(FUZZ / "fuzz.py", name, "--replay")


@pytest.mark.whole
@pytest.mark.skipif(CLANG is None, reason="needs a clang with libFuzzer (Debian: clang libclang-rt-14-dev)")
def test_native_targets_hold_on_fixed_inputs():
    said = run(FUZZ / "run.py", "--fixed", "--only", ",".join(NATIVE), seconds=1800)
    assert f"executions of {len(NATIVE)} targets" in said


@pytest.mark.whole
@pytest.mark.skipif(CLANG is not None, reason="they are fuzzed, which begins with these inputs")
def test_native_targets_hold_on_their_corpora():
    said = run(FUZZ / "replay.py", "both", seconds=1200)
    assert all(f"both {name}: {len(set(inputs(name)))} inputs" in said for name in NATIVE)


@pytest.mark.whole
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris: pip install -e '.[dev]'")
def test_a_target_is_fuzzed_for_its_seconds():
    """By time, as the weekly run is; its inputs are new each time, so a target that has held for millions."""
    said = run(FUZZ / "run.py", "--seconds", 3, "--python", "--only", "tasks")
    assert "| tasks |" in said
    assert "executions of 1 targets" in said
