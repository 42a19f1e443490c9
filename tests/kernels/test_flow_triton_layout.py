"""The layout of a plan for Triton: every weight is kept, and read within its range."""

import numpy as np
import pytest

from fastflow.kernels.flow.triton_layout import lay_out_hidden, padded_width, without_prologue
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage


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
    packed = lay_out_hidden(plan, tile, 32, 32)
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
    assert lay_out_hidden(plan, 64, 32, 32).tiles == 4 < lay_out_hidden(plan, 32, 32, 32).tiles == plan.steps


def test_a_prologue_becomes_a_plan_of_its_own():
    whiten = Stage("whiten", {}, {"mean": np.ones(60), "matrix": np.random.default_rng(4).standard_normal((60, 48))})
    (plan,) = fold([whiten, *flow(8)], 60)
    first, second = without_prologue(plan)
    assert (first.inputs, first.outputs, first.steps) == (60, 48, 0)
    assert (second.inputs, second.steps, second.L) == (48, plan.steps, None)
    assert without_prologue(second) == (second,)
