"""The compiled flow: its layout, and on every instruction set float32 accuracy and a row's same bits always."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.kernels import _cpu, processor
from fastflow.kernels.flow import cpu
from fastflow.plan import fold
from fastflow.transforms.calibration import apply

from support import stages as make
from support.tolerances import FLOW_FLOOR, FUSED_FACTOR, UNIT

CHAIN = make.every_operation()
LENGTHS = (1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97)


def vectors(rng, rows, dim):
    """Vectors like BERT's: two large channels, one with a large mean."""
    x = rng.normal(size=(rows, dim))
    x[:, dim // 3] = 20 + 3 * x[:, dim // 3]
    x[:, dim // 2] *= 8
    return x.astype(np.float32)


def bits(z):
    return z.view(np.int32)


def assert_right(stages, dim, rows, rng, isa=None, **options):
    """The error of the compiled plans of ``stages`` is at most twice that of the unfused float32 computation."""
    x, flow = vectors(rng, rows, dim), cpu.CpuFlow(fold(stages, dim), isa=isa, **options)
    z = flow(x)
    exact = apply(stages, x.astype(np.float64))
    with np.errstate(over="ignore"):  # the unfused sigmoid passes through infinity for a gate that is nearly 0
        unfused = apply([stage.astype(np.float32) for stage in stages], x)
    assert (z.shape, z.dtype) == (exact.shape, np.float32)
    assert np.isfinite(z).all()
    if rows:
        assert np.std(exact) > 0.1
        error, allowed = (np.linalg.norm(y - exact) / np.linalg.norm(exact) for y in (z, unfused))
        assert error <= FUSED_FACTOR * allowed + FLOW_FLOOR


def test_any_number_of_rows(float_isa):
    for rows in (0, *LENGTHS):
        rng = np.random.default_rng(rows)
        assert_right([make.flow(rng, 48, 3, 2, 24)], 48, rows, rng, float_isa, threads=2)


@pytest.mark.parametrize(
    ("coupling", "permutation"), [("additive", "reversal"), ("additive", "lu"), ("affine", "reversal")]
)
def test_any_width_and_odd_tails(float_isa, coupling, permutation):
    for width in LENGTHS:
        rng = np.random.default_rng(width)
        dim = 2 * width + 8 - 2 * width % 4  # halves and quarters of every residue
        assert_right([make.flow(rng, dim, 2, 3, width, coupling, permutation)], dim, 19, rng, float_isa)


def test_any_number_of_columns(float_isa):
    for columns in LENGTHS:
        rng = np.random.default_rng(columns)
        stages = [make.standardize(rng, columns), make.whiten(rng, columns, max(1, columns - 2))]
        assert_right(stages, columns, 9, rng, float_isa)
        assert_right(stages[:1], columns, 9, rng, float_isa)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=25)
@given(make.chains(), st.sampled_from((1, 2, 5, 14, 30)))
def test_any_calibration(chain, rows):
    for name in processor.usable_isas():
        assert_right(chain.stages, chain.dim, rows, chain.rng(), name)


@pytest.mark.parametrize(
    ("dim", "coupling"), [(768, "additive"), (768, "affine"), (1024, "additive"), (312, "additive")]
)
def test_the_papers_flow(float_isa, dim, coupling):
    rng = np.random.default_rng(dim)
    assert_right([make.flow(rng, dim, coupling=coupling)], dim, 40, rng, float_isa)


def test_the_callers_floating_point_mode_changes_no_bit_and_is_kept(float_isa):
    import torch

    rng = np.random.default_rng(3)
    identity = cpu.CpuFlow(fold([], 48), threads=1, isa=float_isa)
    x = vectors(rng, 20, 48)
    x[:, ::3] *= np.float32(1e-40)
    plain = bits(identity(x))
    tiny = np.float32(1e-30)
    assert tiny * np.float32(1e-10) != 0  # subnormals still work out here
    try:
        assert torch.set_flush_denormal(True)
        assert np.array_equal(bits(identity(x)), plain)
        assert tiny * np.float32(1e-10) == 0
    finally:
        torch.set_flush_denormal(False)


def test_normalise_and_truncate(float_isa):
    rng = np.random.default_rng(4)
    flow = cpu.CpuFlow(fold(CHAIN, 104), isa=float_isa)
    x = vectors(rng, 23, 104)
    exact = apply(CHAIN, x.astype(np.float64))
    for keep in (1, 8, 31, 40, 72, None):
        z = flow(x, truncate=keep)
        assert np.array_equal(bits(z), bits(flow(x))[:, :keep])
        unit = flow(x, normalize=True, truncate=keep)
        expected = exact[:, :keep] / np.linalg.norm(exact[:, :keep], axis=1, keepdims=True)
        assert np.isfinite(unit).all()
        assert np.abs(unit - expected).max() <= UNIT
    zeros = np.zeros((3, 40), np.float32)
    assert not cpu.CpuFlow(fold([], 40), isa=float_isa)(zeros, normalize=True).any()


def test_out_receives_the_result_and_may_be_the_input_which_else_stays(float_isa):
    rng = np.random.default_rng(5)
    flow = cpu.CpuFlow(fold([make.flow(rng, 48)], 48), isa=float_isa)
    x, out = vectors(rng, 33, 48), np.empty((33, 48), np.float32)
    given = x.copy()
    given.flags.writeable = False
    z = flow(given)
    assert np.array_equal(given, x)
    assert flow(x, out=out) is out
    assert np.array_equal(out, z)
    assert np.array_equal(flow(x, out=x), z)
    assert np.array_equal(x, z)


def test_a_spoiled_row_spoils_no_other(float_isa):
    rng = np.random.default_rng(7)
    flow = cpu.CpuFlow(fold(CHAIN, 104), isa=float_isa)
    x = vectors(rng, 30, 104)
    good = bits(flow(x))
    x[3], x[17] = np.nan, np.inf
    others = [i for i in range(30) if i not in (3, 17)]
    assert np.array_equal(bits(flow(x))[others], good[others])


VECTOR, TILE = 8, 4


def program(stages, dim, vector=VECTOR):
    return cpu.Program(fold(stages, dim), vector, TILE)


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("vector", [4, 8, 16])
def test_operations_stay_within_scratch_and_weights(coupling, vector):
    rng = np.random.default_rng(0)
    made = program([make.whiten(rng, 50, 44), make.flow(rng, 44, 2, 2, 9, coupling)], 50, vector)
    weights, ops, table = made.arrays()
    assert (made.inputs, made.outputs) == (50, 44)
    assert ops.dtype == _cpu.OP
    assert weights.dtype == np.float32
    assert weights.ctypes.data % 64 == 0
    assert (ops["to"] + ops["columns"]).max() <= made.stride
    assert made.result + made.outputs <= made.stride
    for name in ("weights", "bias"):
        assert (ops[name] % cpu.ALIGN == 0).all(), "vectors begin on a cache line"
        assert ops[name].max() < len(weights)
    products, gathers = (ops[ops["kind"] == kind] for kind in (_cpu.PRODUCT, _cpu.GATHER))
    assert (products["source"] + products["depth"]).max() <= made.stride
    assert products["chain"].min() > 0
    assert (gathers["source"] < gathers["depth"]).all()
    assert gathers["depth"].max() < len(table)
    assert made.stride // cpu.ALIGN % 2 == 1, "rows of scratch fall into different cache sets"


def test_large_weights_are_read_once_for_four_tiles():
    rng = np.random.default_rng(3)
    small = program([make.whiten(rng, 32, 20)], 32)
    assert (small.block, small.cost) == (TILE, 32 * 20)
    assert program([make.whiten(rng, 600, 600)], 600).block == 4 * TILE
