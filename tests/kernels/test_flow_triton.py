"""The Triton flow: tables and messages here, the kernels themselves in processes of their own.

Triton decides at its import whether it interprets or compiles, and cannot do both in one process; so the interpreter's
tests (tests/triton_interpret) and the compiler's (tests/triton_compile) are run by pytest from here.
"""

import subprocess
import sys

import numpy as np
import pytest
from triton_processes import NEEDS, compiled, interpreted

from fastflow.kernels.flow import triton as flow_triton
from fastflow.kernels.flow.triton_layout import pack, padded_width, without_prologue
from fastflow.kernels.flow.triton_table import TABLE, choose
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage


@NEEDS
def test_the_kernels_in_the_interpreter(tmp_path):
    assert interpreted("check_flow.py", tmp_path) >= 120


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


@pytest.mark.parametrize("kind", TABLE)
def test_each_table_serves_every_batch_in_order(kind):
    configs = TABLE[kind]
    assert [c.rows for c in configs] == sorted({c.rows for c in configs})
    assert configs[-1].rows == float("inf")
    assert [choose(kind, rows) for rows in (1, 2, 10**8)] == [configs[0], configs[1], configs[-1]]
    for config in configs:
        assert (config.SCHEME == "fma") == (config.BM == 1)
        assert all(size & (size - 1) == 0 for size in (config.BM, config.BN, config.BK, config.HB))
        assert config.SCHEME in ("fma", "tf32x3")


def test_every_kind_has_a_table():
    assert set(TABLE) == {"hidden", "dense", "state"}


@pytest.mark.parametrize(("width", "padded"), [(0, 16), (1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (200, 256)])
def test_widths_are_padded_to_powers_of_two(width, padded):
    assert padded_width(width) == padded


def flow(width, coupling="additive"):
    rng = np.random.default_rng(3)
    from fastflow.stages.calibration import expected_shapes

    settings = {"levels": 2, "depth": 3, "width": width, "coupling": coupling, "permutation": "reversal"}
    shapes = expected_shapes(Stage("flow", settings, {}), 48)
    return [Stage("flow", settings, {name: rng.standard_normal(shape) * 0.1 for name, shape in shapes.items()})]


@pytest.mark.parametrize(("width", "tile"), [(5, 32), (16, 16), (20, 64), (40, 32), (40, 64)])
def test_packing_keeps_every_weight_and_reads_within_its_ranges(width, tile):
    (plan,) = fold(flow(width), 48)
    packed = pack(plan, tile, 32, 32)
    for name, of_plan in {"U_ptr": plan.U, "V_ptr": plan.V, "G_ptr": plan.G, "B_ptr": plan.B}.items():
        assert np.isclose(np.abs(packed.arrays[name]).sum(), np.abs(of_plan).sum(), rtol=1e-6)
    columns = packed.arrays["U_ptr"].reshape(packed.columns, packed.pitch)
    for number, (low, high) in enumerate(packed.arrays["tile_ptr"] * 16):
        outside = columns[number * tile : (number + 1) * tile].copy()
        outside[:, low:high] = 0
        assert not outside.any()
        assert high <= packed.pitch
    needed = packed.arrays["chunk_ptr"][:, 0]
    assert needed.max() == plan.steps
    assert needed.min() < plan.steps, "channels emitted at the first level need fewer steps"


def test_steps_that_read_the_same_range_share_a_tile():
    (plan,) = fold(flow(32), 48)
    assert pack(plan, 64, 32, 32).tiles == 4 < pack(plan, 32, 32, 32).tiles == plan.steps


def test_a_prologue_becomes_a_plan_of_its_own():
    whiten = Stage("whiten", {}, {"mean": np.ones(60), "matrix": np.random.default_rng(4).standard_normal((60, 48))})
    (plan,) = fold([whiten, *flow(8)], 60)
    first, second = without_prologue(plan)
    assert (first.inputs, first.outputs, first.steps) == (60, 48, 0)
    assert (second.inputs, second.steps, second.L) == (48, plan.steps, None)
    assert without_prologue(second) == (second,)
