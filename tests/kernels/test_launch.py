"""Launching Triton: what is missing is named with the command that installs it, and the CPU is only interpreted on."""

import sys

import pytest

from fastflow.kernels.launch import INSTALL, options, prepare

from support.triton_processes import NEEDS


@pytest.mark.parametrize("module", ["torch", "triton"])
def test_a_missing_module_is_named(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f"device='cuda' needs {module}, which is not installed") as caught:
        prepare("cuda")
    assert INSTALL in str(caught.value)


@NEEDS
def test_no_gpu_and_no_interpreter(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs an NVIDIA GPU with a CUDA build of torch"):
        prepare("cuda")
    with pytest.raises(ValueError, match="runs on a CUDA device, not on 'cpu'"):
        prepare("cpu")


@NEEDS
def test_a_gpu_is_filled_and_the_interpreter_gets_few_programs(monkeypatch):
    from types import SimpleNamespace

    import torch
    import triton

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert prepare("cuda") == (torch, 132)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert prepare("cpu") == (torch, 2)


def test_fused_multiply_adds_are_asked_for_by_name():
    assert options(4, 2) == {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True}
