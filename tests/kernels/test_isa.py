"""What runs by default: an instruction set, and threads by OpenMP, affinity and cgroups."""

import os

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.kernels import isa as instructions
from fastflow.kernels import threads
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.kernels.threads import asked_of_openmp, default_threads, quotas
from fastflow.plan.fold import fold

from support.packed import random_encoder

SWITCH = "FASTFLOW_ISA"


@pytest.fixture
def identity():
    return fold([], 8)


def test_the_usable_come_best_first_and_portable_is_one(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    usable = instructions.usable_isas()
    assert usable[-1] == "portable"
    assert not set(usable) & set(instructions.TILES)
    assert instructions.isa() == usable[0]
    assert instructions.forced_isa() == ""


def test_the_argument_goes_before_the_switch(monkeypatch, identity, float_isa):
    monkeypatch.setenv(SWITCH, "portable")
    assert CpuFlow(identity).isa == "portable"
    assert CpuFlow(identity, isa=float_isa).isa == float_isa
    weights, shape = random_encoder(0, 1, 32, 4, 64)
    for dtype in ("float32", "int8"):
        assert CpuEncoder(weights, shape, "mean", (1,), dtype).isa == "portable"
        encoder = CpuEncoder(weights, shape, "mean", (1,), dtype, isa=float_isa)
        assert encoder.isa == float_isa
        assert encoder.how == float_isa or encoder.how.startswith(f"{float_isa} ")
        assert "not AMX" not in encoder.how, "it was named"


def test_the_switch_reaches_a_runtime(monkeypatch, float_isa, model):
    monkeypatch.setenv(SWITCH, float_isa)
    runtime = fastflow.Runtime(model, backend="cpu")
    assert f"compiled for {float_isa}," in " ".join(runtime.info()["details"])
    assert np.isfinite(runtime.encode(["the dog"])).all()


@pytest.mark.parametrize("name", ["avx1024", "AVX2", " portable"])
def test_one_that_cannot_run_is_an_error_that_lists_what_can(monkeypatch, identity, model, name):
    with pytest.raises(ValueError, match=rf"instruction set '{name}' cannot run.*usable here:.*portable"):
        CpuFlow(identity, isa=name)
    monkeypatch.setenv(SWITCH, name)
    with pytest.raises(ValueError, match=rf"FASTFLOW_ISA={name} cannot run.*usable here:.*portable"):
        CpuFlow(identity)
    with pytest.raises(UsageError, match=rf"FASTFLOW_ISA={name} cannot run"):
        fastflow.Runtime(model, backend="cpu")


def test_an_empty_switch_is_none_and_an_empty_argument_is_an_error(monkeypatch, identity):
    monkeypatch.setenv(SWITCH, "")
    assert CpuFlow(identity).isa == instructions.usable_isas()[0]
    with pytest.raises(ValueError, match="instruction set '' cannot run"):
        CpuFlow(identity, isa="")


@pytest.fixture
def machine(monkeypatch):
    """``machine(processors, cores)``: what this process may use, until the test ends."""

    def set_to(processors, cores):
        monkeypatch.setattr(threads, "allowed", lambda: (processors, cores))

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return set_to


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4), (" 4 ", 4), ("4,2", 4), ("3 , 2,1", 3), ("", None), ("abc", None), ("0", None), ("-2", None),
        ("4.0", None), ("4,", None), (",4", None), ("4;2", None), ("0x4", None), ("\u0664", None), ("9" * 40, None),
    ],
)  # fmt: skip
def test_openmps_variable_is_read_as_openmp_reads_it(text, number):
    assert asked_of_openmp(text) == number


@pytest.mark.parametrize(
    ("asked", "number"), [(None, 4), ("", 4), ("abc", 4), ("2", 2), ("1,8", 1), ("6", 6), ("64", 8)]
)
def test_openmps_variable_counts_at_most_the_processors(machine, monkeypatch, asked, number):
    machine(8, 4)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert default_threads() == number


def test_threads_that_are_named_win(machine, monkeypatch, model):
    machine(8, 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "3 threads" in Runtime(model, backend="cpu").info()["details"][0]
    assert "5 threads" in Runtime(model, threads=5, backend="cpu").info()["details"][0]
    from fastflow.plan.fold import fold

    assert CpuFlow(fold([], 8)).threads == 3
    assert CpuFlow(fold([], 8), threads=7).threads == 7


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_quotas_of_the_second_version(tmp_path):
    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "a" / "cpu.max", "250000 100000\n")
    write(tmp_path / "a" / "b" / "cpu.max", "400000 100000\n")
    assert list(quotas(tmp_path, "0::/a/b\n")) == [2.5, 4.0]
    assert list(quotas(tmp_path, "0::/\n")) == []
    write(tmp_path / "cpu.max", "150000 100000\n")
    assert list(quotas(tmp_path, "0::/elsewhere/not/seen\n")) == [1.5]
    assert list(quotas(tmp_path, "")) == [1.5]


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_quotas_of_the_first_version(tmp_path, mount):
    def group(name, quota):
        write(tmp_path / mount / name / "cpu.cfs_quota_us", f"{quota}\n")
        write(tmp_path / mount / name / "cpu.cfs_period_us", "100000\n")

    group("", -1)
    group("docker/abc", 300000)
    membership = "3:memory:/x\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n"
    assert list(quotas(tmp_path, membership)) == [3.0]
    group("", 100000)  # as a container sees its own group
    assert min(quotas(tmp_path, "1:cpu:/docker/unseen\n")) == 1.0


def test_a_quota_below_one_processor_leaves_one_thread(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    for text, most in (
        ("50000 100000", 1),
        ("0 100000", 1),
        ("garbage", os.cpu_count()),
        ("1000000000 1", os.cpu_count()),
    ):
        for mount in ("", "unified"):
            write(tmp_path / mount / "cpu.max", text)
        threads.allowed.cache_clear()
        assert 1 <= default_threads() <= most
    threads.allowed.cache_clear()
