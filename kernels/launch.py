"""Launch Triton kernels.

Only building a ``Launcher`` imports torch and triton. No call waits for the device, so CUDA graphs can capture it.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

INSTALL = "pip install -e '.[gpu]' in the fastflow checkout"


def options(warps: int, stages: int) -> dict[str, Any]:
    """Return launch options with fused multiply-adds, unlike Triton 3.10's default."""
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}


def prepare(device: str) -> tuple[Any, int]:
    """Return torch, and the number of programs that fill ``device``.

    Raises ValueError if torch, triton or a GPU is missing.
    """
    try:
        torch = importlib.import_module("torch")
        triton = importlib.import_module("triton")
    except ImportError as error:
        missing = error.name or "triton"
        raise ValueError(f"device={device!r} needs {missing}, which is not installed: {INSTALL}") from error
    if torch.device(device).type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(
                f"device={device!r} needs an NVIDIA GPU with a CUDA build of torch, and torch {torch.__version__} sees "
                f"none: {INSTALL} on a machine that has one, or use device='cpu'"
            )
        return torch, int(torch.cuda.get_device_properties(device).multi_processor_count)
    if not triton.knobs.runtime.interpret:
        raise ValueError(f"the Triton flow runs on a CUDA device, not on {device!r}: use device='cuda'")
    return torch, 2  # interpreted: small tests also loop over blocks


class Launcher:
    """Launch the kernels of module ``bodies`` on ``device``. Raises ValueError as ``prepare``."""

    def __init__(self, device: str, bodies: str) -> None:
        self.torch, self.programs = prepare(device)
        self.bodies = importlib.import_module(bodies)
        self.anchor = self.torch.empty(0, device=device)
        self.device = self.anchor.device

    def start(self, kernel: Any, grid: tuple[int, ...], **arguments: Any) -> None:
        if math.prod(grid):
            with self.torch.cuda.device_of(self.anchor):  # Triton launches on the current device
                kernel[grid](**arguments)
