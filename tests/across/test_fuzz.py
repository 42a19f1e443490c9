"""The fuzzer's targets, on their seeds, their corpora, and five minutes of inputs by one seed."""

from __future__ import annotations

import re
import sys
import time
from importlib.util import find_spec

import pytest

from fastflow import FastflowError

from support.corpus import inputs, lines_of
from support.places import ROOT, TESTS
from support.processes import run_limited

CORPUS, RUN = TESTS / "corpus", TESTS / "fuzz/run.py"
sys.path.insert(0, str(TESTS / "fuzz"))

import building  # noqa: E402
import harness  # noqa: E402

LARGE = 1 << 20  # bytes of all corpora
CLANG = building.find_fuzzing_compiler()


def run(*command: object, seconds: int = 600) -> str:
    done = run_limited([sys.executable, *command], seconds, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_corpora_are_small_and_of_targets():
    files = list(CORPUS.iterdir())
    assert {path.stem for path in files} <= {*harness.TARGETS, *building.TARGETS}
    assert sum(path.stat().st_size for path in files) < LARGE
    assert all(inputs(path.stem) for path in files)
    said = [line for path in files for line in lines_of(path.stem) if line.startswith("#")]
    assert len(set(said)) == len(said) >= 8


def test_every_module_that_a_target_or_an_attack_imports_is_there():
    files = [path for folder in ("fuzz", "attacks") for path in (TESTS / folder).rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    modules = set(re.findall(r"^ *from (fastflow[\w.]*) import", text, re.M))
    assert len(modules) > 30
    assert [name for name in modules if find_spec(name) is None] == []


@pytest.mark.whole
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris: pip install -e '.[dev]'")
@pytest.mark.parametrize("name", harness.TARGETS)
def test_python_targets_hold_on_fixed_inputs(name):
    assert f"| {name} |" in run(RUN, "--fixed", "--python", name)


@pytest.mark.whole
@pytest.mark.skipif(find_spec("atheris") is not None, reason="they are fuzzed, which begins with these inputs")
@pytest.mark.parametrize("name", harness.TARGETS)
def test_python_targets_hold_on_their_seeds_corpora_and_random_inputs(name):
    assert "0 faults" in run(RUN, name, "--replay", "--random", 300)


@pytest.mark.whole
@pytest.mark.skipif(CLANG is None, reason="needs a clang with libFuzzer (Debian: clang libclang-rt-14-dev)")
def test_native_targets_hold_on_fixed_inputs():
    said = run(RUN, "--fixed", *building.TARGETS, seconds=1800)
    assert f"executions of {len(building.TARGETS)} targets" in said


@pytest.mark.whole
@pytest.mark.skipif(CLANG is not None, reason="they are fuzzed, which begins with these inputs")
def test_native_targets_hold_on_their_corpora():
    said = run(TESTS / "fuzz/building.py", "both", seconds=1200)
    assert all(f"both {name}: {len(set(inputs(name)))} inputs" in said for name in building.TARGETS)


@pytest.mark.slow
def test_an_input_that_waits_is_no_finding_and_one_that_computes_is(monkeypatch):
    def compute(_):
        while True:
            pass

    monkeypatch.setattr(harness, "SECONDS", 0.3)
    harness.limit(lambda _: time.sleep(0.6))(b"")
    with pytest.raises(harness.Finding, match="processor time"):
        harness.limit(compute)(b"")


def test_an_input_that_takes_memory_is_a_finding():
    with pytest.raises(MemoryError):
        harness.check_contract(lambda: bytes(1 << 30), memory=100 << 20)


@pytest.mark.parametrize("said", ["", "two\nlines", "x" * 1201])
def test_a_refusal_that_is_not_a_sentence_is_a_finding(said):
    def refuse(message):
        raise FastflowError(message)

    with pytest.raises(harness.Finding, match="not a sentence"):
        harness.check_contract(lambda: refuse(said))
    with pytest.raises(harness.Finding, match="sound and refused"):
        harness.check_contract(lambda: refuse("a sentence"), sound=True)
    assert harness.check_contract(lambda: refuse("a sentence")) == "a sentence"


@pytest.mark.whole
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris: pip install -e '.[dev]'")
def test_a_target_is_fuzzed_for_its_seconds():
    said = run(RUN, "--seconds", 3, "--python", "tasks")
    assert "| tasks |" in said
    assert "executions of 1 targets" in said
