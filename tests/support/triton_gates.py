"""Compiling Triton kernels without a GPU, and the limits that every stored configuration must keep."""

import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
SPILLED = 48  # bytes a thread
LARGEST_SHARED = 99 * 1024  # what a block may use on every GPU from sm_80 on


def compile_for(arch, kernel, signature, constexprs, attributes, launch):
    """``kernel`` for sm_``arch``: signature of every argument, divisibility by position, launch options."""
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=launch)


def skip_twin(dtype, arch):
    """Skip half of what float16 and bfloat16 have in common: each is compiled for other GPUs, and together for all."""
    if arch not in {"float16": (80,), "bfloat16": (90, 100)}.get(dtype, (arch,)):
        pytest.skip("its twin is compiled for this GPU")


def assert_within_limits(kernel, tmp_path, arch, warpgroup_products=False):
    """Next to nothing spilled, small, and on Hopper's tensor cores if the block is large enough for them."""
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    usage = dump("--dump-resource-usage", cubin)
    stack, local = (int(re.search(rf"{field}:(\d+)", usage)[1]) for field in ("STACK", "LOCAL"))
    assert (local, stack <= SPILLED) == (0, True), usage
    assert cubin.stat().st_size < 1 << (19 if arch == 100 else 18)
    assert kernel.metadata.shared <= LARGEST_SHARED
    if warpgroup_products:
        assert "HGMMA" in dump("-sass", cubin)


def dump(flag, cubin):
    return subprocess.run([CUOBJDUMP, flag, cubin], capture_output=True, text=True, check=True).stdout


class NoDevice:
    """The driver of a GPU that is not there: enough for compiling what a call would launch."""

    def __init__(self, arch):
        self.arch = arch

    def get_current_target(self):
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self):
        return self.arch  # a number of its own, since compiled kernels are remembered by device

    def get_current_stream(self, device):
        return 0
