"""Every stored configuration of flow and encoder, compiled without a GPU for sm_80, 90 and 100, within the limits.

Run in a process of its own without TRITON_INTERPRET, as tests/kernels/test_triton.py does.
"""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fastflow.bench.suites.flow import make_pooled_like, make_trained_like
from fastflow.kernels.encoder import triton_bodies as encoder_bodies
from fastflow.kernels.encoder.triton import (
    ACTIVATIONS,
    ATTENTION,
    UP,
    TritonEncoder,
    activate_constants,
    attend_constants,
    product_constants,
    row_constants,
)
from fastflow.kernels.flow import triton as flow_triton
from fastflow.kernels.flow import triton_bodies as bodies
from fastflow.kernels.flow.triton import CONFIGURATIONS, UNWEIGHTED, constants, pool_constants, unit_constants
from fastflow.kernels.flow.triton_layout import UNIT, Chain, LaunchLayout
from fastflow.plan import fold

from support.packed import random_encoder
from support.triton_gates import NoDevice, assert_within_limits, compile_for, skip_twin

TABLE_NAMES = ("tile", "step", "link", "chunk", "block", "gather", "span", "offset", "id", "position")
TABLES = {f"{name}_ptr" for name in TABLE_NAMES}
STATES = ("*fp32", "*fp16", "*bf16")
HIDDEN = ("flow_read", "flow_recur", "flow_emit", "flow_chain")
LINKS = ((), (0,), (1,), (1,), (1, 3), (1, 4), (1, 4), (1, 4, 6), (1, 4, 7))  # of the paper's flow
PAIRS = [(step, j) for step, js in enumerate(LINKS) for j in js]
CHAIN = Chain(tuple(range(len(LINKS))), tuple(step for step, _ in PAIRS), tuple(j for _, j in PAIRS))


def packed(dim, dense, unit=UNIT):
    return LaunchLayout({}, dim, dim, 9, 6, 24, 384, dim + 64, dense, CHAIN, unit)


def list_flow_cases():
    """(kernel, constants and options, dtype of x), each once: all flags on, then variations of the widest loop.

    The constants of what pools name the pointers that are None, unless tokens have weights.
    """
    found = {}

    def add(kernel, options, x="*fp32", weighted=False):
        if not weighted:
            options |= {name: None for name in UNWEIGHTED if name in getattr(bodies, kernel).arg_names}
        found.setdefault((kernel, tuple(sorted(options.items())), x), (kernel, options, x))

    for kind, configs in CONFIGURATIONS.items():
        dense = kind == "dense"
        for config in configs:
            one, hidden, unit = config.SCHEME == "fma", kind == "hidden", UNIT if config.SCHEME == "split" else 2 * UNIT
            if kind == "state":
                for width in (64, 32):
                    add("flow_state", constants(config, "flow_state", packed(768, dense), width, gated=False))
            for body in ("flow_state",) if kind == "state" else HIDDEN:
                if body == "flow_chain" and config.AHEAD is None:
                    continue
                wide = (64,) if body != "flow_chain" else ()
                for width in (32, 16, *wide) if config in (configs[min(1, len(configs) - 1)], configs[-1]) else (32,):
                    add(body, constants(config, body, packed(768, dense, unit), width, one and hidden))
                for x in STATES if one and hidden else ():
                    for weighted in (False, True):
                        add(body, constants(config, body, packed(768, dense), 32, True), x, weighted)
    widest = CONFIGURATIONS["hidden"][-1]
    for dim in (768, 312, 33):
        add("flow_emit", constants(widest, "flow_emit", packed(dim, False), 32))
    for body in ("flow_recur", "flow_emit"):
        add(body, constants(widest, body, packed(768, False), 256))
    for x in STATES:
        for weighted in (False, True):
            add("pool_mean", pool_constants(768), x, weighted)
    add("unit_rows", unit_constants(768))
    return list(found.values())


def compile_kernel(kernel, options, arch, pointers, floats, aligned):
    """``pointers``: argument -> its type, *fp32 for the others; ``floats``, ``aligned``: numbers of fp32, of 16s."""
    launch = {k: options[k] for k in ("num_warps", "num_stages", "enable_fp_fusion")}
    constexprs = {k: v for k, v in options.items() if k not in launch}
    signature, attributes = {}, {}
    for position, argument in enumerate(kernel.arg_names):
        if argument in constexprs:
            continue
        if argument.endswith("_ptr"):
            signature[argument] = pointers.get(argument, "*i32" if argument in TABLES else "*fp32")
        else:
            signature[argument] = "fp32" if argument in floats else "i32"
        if argument.endswith("_ptr") or argument in aligned:
            attributes[(position,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constexprs, "constexpr")
    return compile_for(arch, kernel, signature, constexprs, attributes, launch)


def label(value):
    if isinstance(value, dict):
        return "-".join(f"{k}{v}" for k, v in value.items() if not k.startswith(("num_", "enable_")))
    return str(value)


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize(("name", "options", "x"), list_flow_cases(), ids=label)
def test_a_stored_flow_compiles_within_the_limits(name, options, x, arch, tmp_path):
    skip_twin({"*fp16": "float16", "*bf16": "bfloat16"}.get(x, x), arch)
    aligned = {"C", "pitch"} | ({"D", "N", "layer_pitch"} if options.get("VEC", 16) == 16 else set())
    kernel = compile_kernel(getattr(bodies, name), options, arch, {"x_ptr": x}, set(), aligned)
    assert_within_limits(kernel, tmp_path, arch, warpgroup_products=arch == 90 and options.get("BM", 0) >= 64)
    assert ".nc" not in kernel.asm["ptx"]  # a read-only load might return what was there before a barrier


def test_a_warp_loads_neighbouring_channels():
    """With 32 rows and one channel each, the loads through ``gather`` took half of ``flow_emit`` on an H100."""
    widest = CONFIGURATIONS["hidden"][-1]
    options = constants(widest, "flow_emit", packed(768, False), 32) | dict.fromkeys(UNWEIGHTED)
    code = compile_kernel(bodies.flow_emit, options, 90, {}, set(), {"C", "pitch", "D", "N"}).asm["ttgir"]
    assert re.search(rf"tt.load .*tensor<{widest.BM * widest.BN}x!tt.ptr<f32>", code)
    assert not re.search(rf"tt.load .*tensor<({widest.BM}x{widest.BN}|{widest.BN}x{widest.BM})x!tt.ptr<f32>", code)


@pytest.fixture
def compiling(request, monkeypatch):
    """The kernels that a front compiles, specialised on its arguments, instead of launching them."""
    names = []

    def compile_body(self, body, grid, constants, **values):
        getattr(encoder_bodies, body).warmup(**(values | constants), grid=grid)
        names.append(body)

    def compile_only(_, kernel, grid, constants, arrays, **values):
        pointers = {n: arrays.get(n, values.get("x_ptr")) for n in kernel.arg_names if n.endswith("_ptr")}
        if math.prod(grid):
            kernel.warmup(**(pointers | values | constants), grid=grid)
            names.append(kernel.fn.__name__)

    monkeypatch.setattr("fastflow.kernels.launch.prepare", lambda device: (torch, 132))
    monkeypatch.setattr(flow_triton.TritonFlow, "launch", compile_only)
    monkeypatch.setattr(TritonEncoder, "launch", compile_body)
    monkeypatch.setattr(TritonEncoder, "_dot", lambda self, dtype: getattr(tl, dtype))
    triton.runtime.driver.set_active(NoDevice(request.param))
    return names


@pytest.mark.parametrize("compiling", [80, 90], indirect=True)
def test_calls_of_the_flow_compile_with_their_arguments(compiling):
    x = make_pooled_like(256, 48, 1)
    stage = make_trained_like(x, 1, levels=2, depth=1, width=8)
    flow = flow_triton.TritonFlow(fold([stage], 48), "cpu")
    rows = torch.from_numpy(np.ascontiguousarray(x))
    flow(rows[:1])
    flow(rows[:1].bfloat16(), offsets=torch.tensor([0, 1], dtype=torch.int32))
    flow(torch.zeros(2, 200, 48), offsets=torch.tensor([0, 1, 200], dtype=torch.int32), normalize=True)
    flow(torch.zeros(65, 48))
    flow(torch.zeros(4097, 48))
    affine = make_trained_like(x, 1, levels=1, depth=1, width=40, coupling="affine")
    flow_triton.TritonFlow(fold([affine], 48), "cpu")(rows[:1])
    flow_triton.TritonFlow(fold([], 48), "cpu")(rows[:17])
    weighted = flow_triton.TritonFlow(fold([stage], 48), "cpu", weights=np.ones(9, np.float32))
    ids = torch.zeros(33, dtype=torch.int32)
    weighted(rows[:32].bfloat16(), offsets=torch.tensor([0, 32], dtype=torch.int32), ids=ids[1:])
    weighted.pool(torch.zeros(2, 33, 48), torch.tensor([0, 1, 20], dtype=torch.int32), ids)
    shared = flow_triton.TritonFlow(fold([stage], 48), "cpu", shares=(0.75, 0.25))
    shared(torch.zeros(2, 32, 48), offsets=torch.tensor([0, 32], dtype=torch.int32))
    shared.pool(torch.zeros(2, 33, 48), torch.tensor([0, 1, 20], dtype=torch.int32))
    assert compiling == [
        *("flow_read", "flow_chain", "flow_read", "flow_chain", "pool_mean", "flow_read", "flow_chain", "unit_rows"),
        *("flow_read", "flow_recur", "flow_emit") * 2,
        *("flow_state", "flow_emit", "flow_read", "flow_chain", "pool_mean"),
        *("flow_read", "flow_chain", "pool_mean"),
    ]


POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}
OF_DTYPE = ("x_ptr", "residual_ptr", "qkv_ptr", "weight_ptr", "y_ptr")  # the others are float32, or int32


def list_encoder_cases():
    """(kernel, dtype of states, dtype of words, constants and options)."""
    for dtype in POINTERS:
        for width in (1024, 312):
            yield "embed", dtype, "*fp32", row_constants(width)
            yield "add_norm", dtype, None, row_constants(width)
        yield "embed", dtype, "*fp16", row_constants(768)
        yield "pool_first", dtype, None, row_constants(768)
        for activation in ACTIVATIONS:
            yield "activate", dtype, None, activate_constants(activation, 3072)
            if dtype != "float32":
                yield "multiply_activate", dtype, None, product_constants(UP, activation, 3072, getattr(tl, dtype))
        for config in ATTENTION[4 if dtype == "float32" else 2]:
            for head in (64, 26) if config.head <= 64 else (128, 80):
                yield "attend", dtype, None, attend_constants(config, head, getattr(tl, dtype))
    yield "activate", "bfloat16", None, activate_constants("gelu", 97)


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize(("name", "dtype", "words", "options"), list(list_encoder_cases()), ids=label)
def test_a_stored_encoder_compiles_within_the_limits(name, dtype, words, options, arch, tmp_path):
    skip_twin(dtype, arch)
    pointers = dict.fromkeys(OF_DTYPE, POINTERS[dtype]) | {"word_ptr": words}
    if name == "pool_first":
        pointers["y_ptr"] = "*fp32"
    aligned = {"D", "head", "width"} if options["VEC"] == 16 else set()
    kernel = compile_kernel(getattr(encoder_bodies, name), options, arch, pointers, {"eps", "scale"}, aligned)
    assert_within_limits(kernel, tmp_path, arch, warpgroup_products=arch == 90 and options.get("BM", 0) >= 64)
    if name in ("attend", "multiply_activate"):
        assert "mma" in kernel.asm["ptx"], "the tensor cores multiply"


@pytest.mark.parametrize("compiling", [80, 90], indirect=True)
@pytest.mark.parametrize("dtype", POINTERS)
def test_calls_of_the_encoder_compile_with_their_arguments(compiling, dtype, monkeypatch):
    encoder = TritonEncoder(*random_encoder(1, 1, 48, 3, 96), (0, 1), dtype, "cpu")
    ids, offsets = torch.zeros(7, dtype=torch.int32), torch.tensor([0, 3, 7], dtype=torch.int32)
    hidden = encoder(ids, ids, offsets, 4)
    encoder.first(hidden[1], offsets)
    assert compiling == ["embed", "attend", "add_norm", "activate", "add_norm", "pool_first"]
    monkeypatch.setattr("fastflow.kernels.encoder.triton.UP", replace(UP, tokens=7))
    TritonEncoder(*random_encoder(1, 1, 64, 4, 96), (1,), dtype, "cpu")(ids, ids, offsets, 4)
    assert compiling[9] == ("activate" if dtype == "float32" else "multiply_activate")
