"""The real device: no GPU is needed to see that its names and arguments exist in the PyTorch at hand."""

from __future__ import annotations

import inspect

import torch

from fastflow.backends.gpu.device import CudaDevice
from fastflow.backends.gpu.standin import StandIn


def test_the_device_asks_pytorch_for_what_it_has():
    assert {"stream", "capture_error_mode"} <= set(inspect.signature(torch.cuda.graph.__init__).parameters)
    assert issubclass(torch.cuda.OutOfMemoryError, RuntimeError)
    for name in ("empty_cache", "memory_reserved", "CUDAGraph", "Event", "Stream", "current_stream", "stream"):
        assert hasattr(torch.cuda, name)
    wanted = {name for name in vars(CudaDevice) if not name.startswith("_")}
    assert wanted <= set(dir(StandIn)), "the stand-in does what the device does"
    assert wanted == {"pinned", "empty", "stream", "run", "record", "wait", "synchronize", "capture", "release"}
