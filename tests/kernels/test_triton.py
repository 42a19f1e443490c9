"""Triton's launch, its two fronts and their tables here; the kernels in processes of their own.

Triton decides at its import whether it interprets or compiles, and cannot do both in one process; so the interpreter's
tests (tests/triton_interpret) and the compiler's (tests/triton_compile) are run by pytest from here.
"""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fastflow.kernels.encoder.triton import ATTENTION, WIDEST, attention, power_of_two, row_constants
from fastflow.kernels.flow import stack
from fastflow.kernels.flow import triton as flow_triton
from fastflow.kernels.flow.triton import CONFIGURATIONS, choose
from fastflow.kernels.flow.triton_layout import arrange, count_products, lay_out_hidden, pad_width, split_stacked
from fastflow.kernels.launch import options, prepare
from fastflow.plan import fold

from support import stages as make
from support.places import ROOT
from support.triton_processes import NEEDS, compiled, interpreted


@NEEDS
@pytest.mark.whole
@pytest.mark.parametrize(("files", "least"), [(["check_encoder.py", "check_models.py"], 55), (["check_flow.py"], 100)])
def test_the_kernels_in_the_interpreter(tmp_path, files, least):
    """And a whole Runtime on the kernels."""
    assert interpreted(tmp_path, *files) >= least


@NEEDS
@pytest.mark.compile
def test_the_stored_configurations_compile(tmp_path):
    counts = compiled(tmp_path, "check_compile.py")
    assert min(counts) >= 79


@NEEDS
def test_a_batch_of_another_size_runs_the_same_kernel():
    """Triton compiles anew for an argument that is 1 or a multiple of 16, and its sums then have another order."""
    from triton.runtime.jit import JITFunction

    from fastflow.kernels.flow import triton_bodies

    kernels = [
        kernel for kernel in vars(triton_bodies).values()
        if isinstance(kernel, JITFunction) and kernel.__module__ == triton_bodies.__name__
    ]  # fmt: skip
    changing = [p for kernel in kernels for p in kernel.params if p.name in ("B", "layer_pitch")]
    assert len(changing) == 10
    assert all(p.do_not_specialize for p in changing)


@pytest.mark.parametrize("front", ["flow", "encoder"])
def test_importing_a_front_loads_neither_torch_nor_triton(tmp_path, front):
    code = f"import sys, fastflow.kernels.{front}.triton; print(sorted({{'torch', 'triton'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


@NEEDS
def test_a_gpu_is_filled_and_the_interpreter_gets_few_programs(monkeypatch):
    import torch
    import triton

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert prepare("cuda") == (torch, 132)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert prepare("cpu") == (torch, 2)
    assert options(4, 2) == {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True}, "asked for by name"


@pytest.mark.parametrize("itemsize", ATTENTION)
def test_every_head_and_length_has_a_configuration(itemsize):
    for head in (1, 32, 64, 65, WIDEST):
        found = [attention(itemsize, head, tokens) for tokens in (1, 16, 17, 64, 65, 10**6)]
        assert all(head <= config.head for config in found)
        assert [config.BM for config in found] == sorted(config.BM for config in found)
    for config in ATTENTION[itemsize]:
        assert all(size & (size - 1) == 0 and size >= 16 for size in (config.BM, config.BN))


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_each_table_of_the_flow_serves_every_batch_in_order(kind):
    assert set(CONFIGURATIONS) == {"hidden", "dense", "state"}
    configs = CONFIGURATIONS[kind]
    assert [c.rows for c in configs] == sorted({c.rows for c in configs})
    assert configs[-1].rows == float("inf")
    first = int(configs[0].rows)
    assert [choose(kind, rows) for rows in (1, first, first + 1, 10**8)] == [configs[i] for i in (0, 0, 1, -1)]
    for config in configs:
        assert (config.SCHEME == "fma") == (config.BM == 1)
        assert all(size & (size - 1) == 0 for size in (config.BM, config.BN, config.BK, config.HB))
        assert config.SCHEME in ("fma", "tf32x3", "split")


@NEEDS
def test_least_times_of_a_million_rows_are_those_of_the_page():
    """Bytes over 3.35 TB/s; three products of TF32 for one in float32, over 495 TFLOP/s."""
    from fastflow.bench.suites.flow import make_synthetic

    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    for name, dim, shape in (("plain", 768, (3, 3, 32)), ("packaged", 256, (2, 6, 64))):
        plans = make_synthetic(*shape, coupling="additive", rows=64, dim=dim, recolour=name == "packaged").plans
        times = [8 * dim / 3.35e3, *(6 * count_products(arrange(plans, merge)) / 4.95e5 for merge in (True, False))]
        assert f"| {name}, {dim} | {' | '.join(f'{each:.1f}' for each in times)} |" in page


def test_widths_are_padded_to_powers_of_two():
    powers = {1: 1, 2: 2, 3: 4, 768: 1024, 1024: 1024}
    assert {number: power_of_two(number) for number in powers} == powers
    assert {number: row_constants(number)["BD"] for number in powers} == powers
    padded = {0: 16, 1: 16, 16: 16, 17: 32, 32: 32, 33: 64, 200: 256}
    assert {width: pad_width(width) for width in padded} == padded


def flow(width, dim=48):
    return make.flow(np.random.default_rng(3), dim, 2, 3, width)


@pytest.mark.parametrize(("width", "tile"), [(5, 32), (16, 16), (20, 64), (40, 32), (40, 64)])
def test_packing_keeps_every_weight_and_reads_within_its_ranges(width, tile):
    (plan,) = fold([flow(width)], 48)
    plan = stack([plan])
    packed, (U, _, G, V) = lay_out_hidden(plan, tile, 32, 32), split_stacked(plan)
    for name, of_plan in {"U_ptr": U, "V_ptr": V, "G_ptr": G, "B_ptr": plan.B}.items():
        assert np.isclose(np.abs(packed.arrays[name]).sum(), np.abs(of_plan).sum(), rtol=1e-6)
    columns = packed.arrays["U_ptr"].reshape(packed.columns, packed.pitch)
    for number, (low, high) in enumerate(packed.arrays["tile_ptr"] * 16):
        outside = columns[number * tile : (number + 1) * tile].copy()
        outside[:, low:high] = 0
        assert not outside.any()
        assert high <= packed.pitch
    needed = np.diff(packed.arrays["chunk_ptr"])
    assert 0 < needed.max() < plan.steps * max(1, packed.arrays["B_ptr"].shape[1] // 32), "no channel needs every step"


def test_steps_of_one_range_share_a_tile_and_a_prologue_is_a_plan_of_its_own():
    (plan,) = arrange(fold([flow(32)], 48))
    assert lay_out_hidden(plan, 64, 32, 32).tiles == 4 < lay_out_hidden(plan, 32, 32, 32).tiles == plan.steps
    rng = np.random.default_rng(4)
    first, second = arrange(fold([make.whiten(rng, 60, 48), flow(8)], 60))
    assert (first.inputs, first.outputs, first.steps) == (60, 48, 0)
    assert (second.inputs, second.steps) == (48, plan.steps)


@pytest.mark.parametrize(
    ("permutation", "kinds"), [("reversal", ["hidden", "state", "dense"]), ("lu", ["dense", "state"] * 2 + ["dense"])]
)
def test_neighbours_without_gates_are_one_launch(permutation, kinds):
    rng = np.random.default_rng(4)
    plain, gated = (
        make.flow(rng, 48, 1, 2, 8, "additive", permutation),
        make.flow(rng, 48, 1, 2, 8, "affine", permutation),
    )
    plans = arrange(fold([plain, gated, make.flow(rng, 48, 1, 2, 8), make.recolour(rng, 48)], 48))
    assert [flow_triton.kind(plan) for plan in plans] == kinds
