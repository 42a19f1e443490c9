"""Every stored configuration of the Triton encoder, compiled without a GPU for sm_80 and sm_90.

Run in a process of its own without TRITON_INTERPRET, as tests/kernels/test_triton.py does.
"""

import pytest
import torch
import triton
import triton.language as tl

from fastflow.kernels.encoder import triton as encoder_triton
from fastflow.kernels.encoder import triton_bodies as bodies
from fastflow.kernels.encoder.triton_configurations import (
    ACTIVATIONS,
    ATTENTION,
    activate_constants,
    attend_constants,
    row_constants,
)

from support.packed import random_encoder
from support.triton_gates import NoDevice, assert_within_limits, compile_for, skip_twin

POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
OF_DTYPE = {"x_ptr", "residual_ptr", "qkv_ptr", "y_ptr"}  # the others hold float32, or int32
WHOLE = {"id_ptr", "position_ptr", "offset_ptr"}
FLOATS = {"eps", "scale"}


def cases():
    """(kernel, dtype of states, dtype of words, constants and options)."""
    for dtype in POINTERS:
        for width in (1024, 312):
            yield "embed", dtype, "*fp32", row_constants(width)
            yield "add_norm", dtype, None, row_constants(width)
        yield "embed", dtype, "*fp16", row_constants(768)
        yield "pool_first", dtype, None, row_constants(768)
        for activation in ACTIVATIONS:
            yield "activate", dtype, None, activate_constants(activation, 3072)
        for config in ATTENTION[SIZES[dtype]]:
            for head in (64, 26) if config.head <= 64 else (128, 80):
                yield "attend", dtype, None, attend_constants(config, head, getattr(tl, dtype))
    yield "activate", "bfloat16", None, activate_constants("gelu", 97)


def compiled(name, dtype, words, options, arch):
    kernel = getattr(bodies, name)
    launch = {k: options[k] for k in ("num_warps", "num_stages", "enable_fp_fusion")}
    constexprs = {k: v for k, v in options.items() if k not in launch}
    signature, attributes = {}, {}
    for position, argument in enumerate(kernel.arg_names):
        if argument in WHOLE:
            signature[argument] = "*i32"
        elif argument == "word_ptr":
            signature[argument] = words
        elif argument.endswith("_ptr"):
            narrow = argument in OF_DTYPE and not (name == "pool_first" and argument == "y_ptr")
            signature[argument] = POINTERS[dtype] if narrow else "*fp32"
        elif argument not in constexprs:
            signature[argument] = "fp32" if argument in FLOATS else "i32"
        if argument.endswith("_ptr") or (argument in ("D", "head") and constexprs["VEC"] == 16):
            attributes[(position,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constexprs, "constexpr")
    return compile_for(arch, kernel, signature, constexprs, attributes, launch)


def label(value):
    if isinstance(value, dict):
        return "-".join(f"{k}{v}" for k, v in value.items() if not k.startswith(("num_", "enable_")))
    return str(value)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("name", "dtype", "words", "options"), list(cases()), ids=label)
def test_a_stored_configuration_compiles_within_the_limits(name, dtype, words, options, arch, tmp_path):
    skip_twin(dtype, arch)
    kernel = compiled(name, dtype, words, options, arch)
    assert_within_limits(kernel, tmp_path, arch, warpgroup_products=arch == 90 and options.get("BM", 0) >= 64)
    if name == "attend":
        assert "mma" in kernel.asm["ptx"], "attention is on the tensor cores"


@pytest.fixture
def compiling(request, monkeypatch):
    """The names of the kernels that a TritonEncoder compiles, specialised on its arguments, instead of launching."""
    names = []

    def compile_only(self, body, grid, constants, **values):
        getattr(bodies, body).warmup(**(values | constants), grid=grid)
        names.append(body)

    monkeypatch.setattr("fastflow.kernels.launch.prepare", lambda device: (torch, 132))
    monkeypatch.setattr(encoder_triton.TritonEncoder, "launch", compile_only)
    monkeypatch.setattr(encoder_triton.TritonEncoder, "_dot", lambda self, dtype: getattr(tl, dtype))
    triton.runtime.driver.set_active(NoDevice(request.param))
    return names


@pytest.mark.parametrize("compiling", [80, 90], indirect=True)
@pytest.mark.parametrize("dtype", POINTERS)
def test_calls_compile_with_the_arguments_they_really_have(compiling, dtype):
    encoder = encoder_triton.TritonEncoder(*random_encoder(1, 1, 48, 3, 96), (0, 1), dtype, "cpu")
    ids, offsets = torch.zeros(7, dtype=torch.int32), torch.tensor([0, 3, 7], dtype=torch.int32)
    hidden = encoder(ids, ids, offsets, 4)
    encoder.first(hidden[1], offsets)
    assert compiling == ["embed", "attend", "add_norm", "activate", "add_norm", "pool_first"]
