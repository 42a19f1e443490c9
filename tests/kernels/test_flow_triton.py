"""The Triton flow: tables and messages here, the kernels themselves in processes of their own.

Triton decides at its import whether it interprets or compiles, and cannot do both in one process; so the interpreter's
tests (tests/triton_interpret) and the compiler's (tests/triton_compile) are run by pytest from here.
"""

import subprocess
import sys

import numpy as np
import pytest

from fastflow.kernels.flow import triton as flow_triton
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage

from support.triton_processes import NEEDS, compiled, interpreted


@pytest.mark.slow
@NEEDS
def test_the_kernels_in_the_interpreter(tmp_path):
    assert interpreted(tmp_path, "check_flow.py") >= 105


@NEEDS
@pytest.mark.whole
def test_the_rest_of_the_kernels_in_the_interpreter(tmp_path):
    assert interpreted(tmp_path, "check_flow.py", marked="whole") >= 19


@NEEDS
@pytest.mark.compile
def test_the_stored_configurations_compile(tmp_path):
    counts = compiled("check_compile.py", tmp_path)
    assert counts[0] == counts[1] >= 45


@pytest.fixture
def plans():
    return fold([Stage("standardize", {}, {"mean": np.zeros(8), "deviation": np.ones(8)})], 8)


@pytest.mark.parametrize("module", ["torch", "triton"])
def test_a_missing_module_is_named_with_the_command_that_installs_it(module, plans, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"needs {module}.*pip install -e '\.\[gpu\]' in the"):
        flow_triton.TritonFlow(plans)


@NEEDS
def test_a_missing_gpu_is_said_in_one_sentence(plans, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs an NVIDIA GPU") as caught:
        flow_triton.TritonFlow(plans)
    assert "\n" not in str(caught.value)


@NEEDS
def test_the_cpu_is_refused_outside_the_interpreter(plans):
    with pytest.raises(ValueError, match="use device='cuda'"):
        flow_triton.TritonFlow(plans, "cpu")


def test_no_plans_are_refused():
    with pytest.raises(ValueError, match="at least one plan"):
        flow_triton.TritonFlow(())


def test_importing_the_front_loads_neither_torch_nor_triton():
    code = "import sys, fastflow.kernels.flow.triton; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code] if sys.version_info >= (3, 11) else
                          [sys.executable, "-c", code], capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "[]"
