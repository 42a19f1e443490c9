"""Before it is used an instruction set computes a few numbers: one that is wrong is passed over, with a warning."""

import json
import time

import numpy as np
import pytest

from fastflow.errors import UsageError
from fastflow.kernels import _cpu
from fastflow.kernels import isa as instructions

# self-tests of c/selftest/parts.h by number, and whether nothing runs on an instruction set that fails one
FLOATS = {0: "the flow", 1: "the mean of a table's rows", 2: "scans", 3: "rows of the encoder", 4: "float32 products",
          10: "float32 attention"}  # fmt: skip
SELFTESTS = 16


def number(name):
    return _cpu.isas()[name][0]


def own_selftests(isa):
    """The self-tests that ``isa`` has: a product and attention of each of its formats, and what is float32."""
    formats = {4 + form for form in _cpu.formats(number(isa))} | {10 + f for f in _cpu.attention_formats(number(isa))}
    return formats if isa.startswith("amx") else formats | set(FLOATS)


def test_what_this_machine_has_is_right(isa):
    assert _cpu.try_again(number(isa)) == []
    assert _cpu.usable(number(isa))
    assert _cpu.wrong(number(isa)) == []


def test_a_wrong_number_fails_its_own_self_test_and_no_other(isa):
    expected = own_selftests(isa)
    assert len(expected) >= 3
    for test in range(SELFTESTS):
        assert _cpu.try_again(number(isa), test) == ([test] if test in expected else []), test
    assert _cpu.usable(number(isa)), "a self-test that is not kept changes nothing"


def test_what_is_no_instruction_set_is_none():
    assert not _cpu.usable(99)
    assert not _cpu.usable(-1)
    for call in (_cpu.wrong, _cpu.try_again):
        with pytest.raises(ValueError, match="there is no instruction set 99"):
            call(99)


def test_all_self_tests_of_a_machine_take_under_five_milliseconds_of_the_processor():
    def spent():
        start = time.process_time_ns()
        for isa in instructions.isas():
            _cpu.try_again(number(isa))
        return time.process_time_ns() - start

    assert min(spent() for _ in range(5)) < 5e6


BROKEN = """
import json, sys, warnings
from fastflow.kernels import _cpu
for name, selftests in json.loads(sys.argv[2]).items():
    for test in selftests:
        _cpu.try_again(_cpu.isas()[name][0], test, True)
import fastflow
from fastflow.errors import FastflowError
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        runtime = fastflow.Runtime(sys.argv[1], dtype=sys.argv[3], threads=1)
        z = runtime.encode(["the dog", "a cat sat"])
        fastflow.Runtime(sys.argv[1], dtype=sys.argv[3], threads=1)
        info = runtime.info()
        said = [info["backend"], info["details"], info["notes"], z.tolist()]
    except FastflowError as error:
        said = [type(error).__name__, str(error)]
print(json.dumps([said, [str(each.message) for each in seen]]))
"""


@pytest.fixture
def opened(run_python):
    """``opened(model, broken)``: what a process reports if the self-tests ``broken`` of each instruction set fail."""

    def run(model, broken, dtype="float32"):
        done = run_python(BROKEN, model, json.dumps(broken), dtype)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def better_than_portable():
    found = [name for name in instructions.usable_isas() if name != "portable"]
    if not found:
        pytest.skip("this machine has the portable kernels alone")
    return found


@pytest.mark.slow
def test_a_wrong_body_steps_down_to_the_next_and_warns(opened, model):
    best, *others = (*better_than_portable(), "portable")
    (backend, details, notes, z), warned = opened(model, {})
    assert (backend, notes, warned) == ("cpu", [], [])
    assert f"compiled for {best}" in " ".join(details)
    (backend, details, notes, stepped), warned = opened(model, {best: [0]})
    assert backend == "cpu"
    assert f"compiled for {others[0]}" in " ".join(details)
    assert len(notes) == 1
    assert f"instruction set {best} computes wrong numbers on this machine (the flow)" in notes[0]
    assert set(warned) == set(notes)
    np.testing.assert_allclose(stepped, z, atol=1e-4)


@pytest.mark.slow
def test_without_any_right_body_auto_is_the_reference(opened, model):
    every = {name: [0] for name in instructions.usable_isas()}
    (backend, _, notes, z), warned = opened(model, every)
    assert backend == "reference"
    reason = "the cpu backend cannot run: instruction set"
    assert any(note.startswith(f"stepped down from the cpu backend: {reason}") for note in notes)
    assert warned[0].startswith(reason)
    assert len(z) == 2


@pytest.mark.slow
def test_a_wrong_product_in_reduced_precision_leaves_float32_as_it_is(opened, model):
    best = better_than_portable()[0]
    halves = (_cpu.BF16, _cpu.BF16_WIDE)
    wrong = {name: [next(4 + form for form in halves if form in _cpu.formats(number(name)))]
             for name in (best, "amx") if _cpu.isas()[name][1]}  # fmt: skip
    (backend, details, notes, _), _ = opened(model, {})
    (same, as_before, passed_over, _), _ = opened(model, wrong)
    assert (same, as_before) == (backend, details) == ("cpu", details)
    assert notes == []
    assert len(passed_over) == len(wrong)
    (_, sound, _, _), _ = opened(model, {}, "bfloat16")
    (backend, details, _, _), warned = opened(model, wrong, "bfloat16")
    assert backend == "cpu"
    assert details != sound  # another format of the same instruction set, or another set
    assert any("products" in each for each in warned)


@pytest.mark.slow
def test_one_that_is_named_and_wrong_is_refused(run_python, model):
    best = better_than_portable()[0]
    named = "import os\nos.environ['FASTFLOW_ISA'] = sys.argv[4]\nimport fastflow\n"
    code = BROKEN.replace("import fastflow\n", named)
    done = run_python(code, model, json.dumps({best: [4]}), "float32", best)
    assert done.returncode == 0, done.stderr
    (kind, sentence), _ = json.loads(done.stdout)
    assert kind == UsageError.__name__
    assert sentence.startswith(
        f"FASTFLOW_ISA={best} cannot run on this machine (it computes wrong numbers in its self-tests: "
    )
    assert "float32 products" in sentence
