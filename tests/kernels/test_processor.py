"""The instruction set and threads that run by default, and the self-tests that an instruction set must pass."""

import json
import os
import time

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.kernels import _cpu, processor
from fastflow.kernels.encoder import PoolingSpec
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.kernels.processor import default_threads, parse_openmp, quotas
from fastflow.plan import fold

from support.packed import random_encoder

SWITCH = "FASTFLOW_ISA"


@pytest.fixture
def identity():
    return fold([], 8)


def test_the_usable_come_best_first_and_portable_is_one(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    usable = processor.usable_isas()
    assert usable[-1] == "portable"
    assert not set(usable) & set(processor.TILES)
    assert processor.isa() == usable[0]
    assert processor.find_forced_isa() == ""


def test_the_argument_goes_before_the_switch(monkeypatch, identity, float_isa):
    monkeypatch.setenv(SWITCH, "portable")
    assert CpuFlow(identity).isa == "portable"
    assert CpuFlow(identity, isa=float_isa).isa == float_isa
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    for dtype in ("float32", "int8"):
        assert CpuEncoder(weights, shape, PoolingSpec("mean", (1,)), dtype).isa == "portable"
        encoder = CpuEncoder(weights, shape, PoolingSpec("mean", (1,)), dtype, isa=float_isa)
        assert encoder.isa == float_isa
        assert encoder.how == float_isa or encoder.how.startswith(f"{float_isa} ")
        assert "not AMX" not in encoder.how, "it was named"


def test_the_switch_reaches_a_runtime(monkeypatch, float_isa, model):
    monkeypatch.setenv(SWITCH, float_isa)
    runtime = fastflow.Runtime(model, backend="cpu")
    assert f"compiled for {float_isa}," in " ".join(runtime.info()["details"])
    assert np.isfinite(runtime.encode(["the dog"])).all()


def test_an_empty_switch_is_none_and_an_empty_argument_is_an_error(monkeypatch, identity):
    monkeypatch.setenv(SWITCH, "")
    assert CpuFlow(identity).isa == processor.usable_isas()[0]
    with pytest.raises(ValueError, match="instruction set '' cannot run"):
        CpuFlow(identity, isa="")


@pytest.fixture
def machine(monkeypatch):
    """``machine(processors, cores)``: what this process may use, until the test ends."""

    def set_to(processors, cores):
        monkeypatch.setattr(processor, "count_allowed", lambda: (processors, cores))

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return set_to


def test_openmps_variable_is_read_as_openmp_reads_it():
    for text, number in {"4": 4, " 4 ": 4, "4,2": 4, "3 , 2,1": 3}.items():
        assert parse_openmp(text) == number, text
    for text in ("", "abc", "0", "-2", "4.0", "4,", ",4", "4;2", "0x4", "\u0664", "9" * 40):
        assert parse_openmp(text) is None, text


def test_openmps_variable_counts_at_most_the_processors(machine, monkeypatch):
    machine(8, 4)
    assert default_threads() == 4
    for asked, number in {"": 4, "abc": 4, "2": 2, "1,8": 1, "6": 6, "64": 8}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert default_threads() == number, asked


def test_threads_that_are_named_win(machine, monkeypatch, model):
    machine(8, 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "3 threads" in Runtime(model, backend="cpu").info()["details"][0]
    assert "5 threads" in Runtime(model, threads=5, backend="cpu").info()["details"][0]
    assert CpuFlow(fold([], 8)).threads == 3
    assert CpuFlow(fold([], 8), threads=7).threads == 7


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


SECOND = {"cpu.max": "max 100000", "a/cpu.max": "250000 100000", "a/b/cpu.max": "400000 100000"}
PERIODS = {f"{{}}/{folder}cpu.cfs_period_us": "100000" for folder in ("", "docker/abc/", "x/")}
FIRST = PERIODS | {"{}/cpu.cfs_quota_us": "-1", "{}/docker/abc/cpu.cfs_quota_us": "300000"}
FIRST |= {"{}/x/cpu.cfs_quota_us": "200000"}  # of a group for memory
MEMBERSHIP = "3:memory:/x\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n"


@pytest.mark.parametrize(
    ("files", "membership", "allowed"),
    [
        (SECOND, "0::/a/b\n", [2.5, 4.0]),
        (SECOND, "0::/\n", []),
        ({"cpu.max": "150000 100000"}, "0::/elsewhere/not/seen\n", [1.5]),
        ({"cpu.max": "150000 100000"}, "", [1.5]),
        (FIRST, MEMBERSHIP, [3.0]),
        (PERIODS | {"{}/cpu.cfs_quota_us": "100000"}, "1:cpu:/docker/unseen\n", [1.0]),  # as in a container
    ],
)
def test_quotas(tmp_path, files, membership, allowed):
    for root, mount in ((tmp_path / "a", "cpu"), (tmp_path / "b", "cpu,cpuacct")):
        for name, text in files.items():
            write(root / name.format(mount), f"{text}\n")
        assert list(quotas(root, membership)) == allowed


def test_a_quota_below_one_processor_leaves_one_thread(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processor, "CGROUPS", tmp_path)
    cases = {"50000 100000": 1, "0 100000": 1, "garbage": os.cpu_count(), "1000000000 1": os.cpu_count()}
    for text, most in cases.items():
        for mount in ("", "unified"):
            write(tmp_path / mount / "cpu.max", text)
        processor.count_allowed.cache_clear()
        assert 1 <= default_threads() <= most
    processor.count_allowed.cache_clear()


FLOATS = {0, 1, 2, 3, 4, 10}  # numbers of c/selftest/parts.h: the self-tests of float32
SELFTESTS = 16


def number(name):
    return _cpu.isas()[name][0]


def list_selftests(isa):
    """The self-tests of ``isa``: a product and attention of each of its formats, and float32's."""
    formats = {4 + form for form in _cpu.formats(number(isa))} | {10 + f for f in _cpu.attention_formats(number(isa))}
    return formats if isa.startswith("amx") else formats | FLOATS


def test_this_machine_passes_its_self_tests(isa):
    assert _cpu.try_again(number(isa)) == []
    assert _cpu.usable(number(isa))
    assert _cpu.wrong(number(isa)) == []


def test_a_wrong_number_fails_its_own_self_test_and_no_other(isa):
    expected = list_selftests(isa)
    assert len(expected) >= 3
    for test in range(SELFTESTS):
        assert _cpu.try_again(number(isa), test) == ([test] if test in expected else []), test
    assert _cpu.usable(number(isa)), "a self-test that is not kept changes nothing"


def test_an_unknown_instruction_set_is_refused():
    assert not _cpu.usable(99)
    assert not _cpu.usable(-1)
    for call in (_cpu.wrong, _cpu.try_again):
        with pytest.raises(ValueError, match="there is no instruction set 99"):
            call(99)


def test_all_self_tests_of_a_machine_take_under_five_milliseconds_of_the_processor():
    def spent():
        start = time.process_time_ns()
        for isa in processor.isas():
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
    """``opened(model, broken)``: a process's report if the self-tests ``broken`` of each instruction set fail."""

    def run(model, broken, dtype="float32"):
        done = run_python(BROKEN, model, json.dumps(broken), dtype)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def better_than_portable():
    found = [name for name in processor.usable_isas() if name != "portable"]
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
    every = {name: [0] for name in processor.usable_isas()}
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
