"""Which instruction set runs: a named one and no other, FASTFLOW_ISA if none is named, else the best."""

import numpy as np
import pytest

import fastflow
from fastflow.errors import UsageError
from fastflow.kernels import isa as instructions
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.flow.cpu import CpuFlow
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
