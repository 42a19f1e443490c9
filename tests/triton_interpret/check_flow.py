"""The Triton kernels against float64: in Triton's interpreter on a CPU (TRITON_INTERPRET=1), else on a GPU.

tests/kernels/test_triton.py runs this file in a process of its own. LONG tests repeat paths, on a GPU only. Buffers
start as NaN, so that unwritten values show.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

import fastflow
from fastflow.bench.suites.flow import make_pooled_like, make_trained_like
from fastflow.kernels.encoder import reference
from fastflow.kernels.flow import triton as flow_triton
from fastflow.kernels.flow.triton import CONFIGURATIONS, POOL_FUSED
from fastflow.model.artifact import load_model
from fastflow.plan import fold
from fastflow.transforms.calibration import Stage, apply

from support import stages as make
from support.builders import fitted

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
FLOOR = 5e-7  # relative: a float32 result is rounded once more than it is computed
LIMIT = 2e-6  # relative: float32 sums of a text's tokens against float64
LONG = pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter takes long for the same paths; needs a GPU")
BODIES = {kind: range(len(configs)) for kind, configs in CONFIGURATIONS.items()}


def make_nan(*size, **options):
    return torch.full(size, torch.nan, **options)


def on_device(stages, dim, weights=None, shares=None):
    flow = flow_triton.TritonFlow(fold(stages, dim), DEVICE, weights, shares)
    flow.torch = SimpleNamespace(**(vars(torch) | {"empty": make_nan}))
    if DEVICE == "cpu":
        flow.programs = 1  # so that a program takes more than one block
    return flow


def run(flow, x, **options):
    given_x = torch.from_numpy(x).to(DEVICE)
    z = flow(given_x, **options)
    for _ in range(3 if DEVICE == "cuda" else 0):
        assert torch.equal(z, flow(given_x, **options)), "two runs on the same input differ: a race"
    return z.cpu().numpy()


def error(z, exact):
    assert z.shape == exact.shape
    assert np.isfinite(z).all()
    return np.linalg.norm(z - exact) / max(np.linalg.norm(exact), 1e-30)


def assert_as_good_as_unfused(z, x, stages):
    exact = apply([stage.astype(np.float64) for stage in stages], x.astype(np.float64))
    unfused = apply([stage.astype(np.float32) for stage in stages], x)
    assert error(z, exact) <= 2 * error(unfused, exact) + FLOOR
    worst, worst_unfused = np.abs(z - exact).max(), np.abs(unfused - exact).max()
    assert worst <= 2 * worst_unfused + FLOOR * np.abs(exact).max()


def assert_body(stages, x):
    """The kernels that serve ``x`` are as good as the unfused calibration."""
    assert_as_good_as_unfused(run(on_device(stages, x.shape[1]), x), x, stages)


SMALL = {"levels": 2, "depth": 2, "width": 8}


def use(monkeypatch, number, few=flow_triton.FEW):
    """Serve every batch with one configuration of the table; merge steps for up to ``few`` rows."""
    monkeypatch.setattr(flow_triton, "choose", lambda kind, *_: CONFIGURATIONS[kind][number])
    monkeypatch.setattr(flow_triton, "FEW", few)


def vectors(rows, dim, seed=7):
    return make_pooled_like(max(rows, 64), dim, seed)


def whitening(x, outputs):
    mean = x.mean(axis=0).astype(np.float64)
    values, axes = np.linalg.eigh(np.cov((x - mean).T) + 1e-3 * np.eye(x.shape[1]))
    order = np.argsort(-values)[:outputs]
    return Stage("whiten", {}, {"mean": mean, "matrix": axes[:, order] / np.sqrt(values[order])})


def recolouring(z):
    """A recolour stage that leaves the last direction a thirtieth of the first."""
    axes = np.linalg.qr(np.random.default_rng(5).standard_normal((z.shape[1], z.shape[1])))[0]
    scale = np.geomspace(1, 1 / 30, z.shape[1])
    params = {"mean": z.mean(axis=0).astype(np.float64), "matrix": axes * scale, "shift": 0.1 * scale}
    return Stage("recolour", {"spectrum": 0.25, "mean_share": 0.2, "demoted": 0}, params)


SHAPES = [
    (768, {"levels": 3, "depth": 3, "width": 32}),
    (1024, {"levels": 2, "depth": 2, "width": 32}),
    (312, {"levels": 3, "depth": 3, "width": 17}),
    (384, {"levels": 2, "depth": 3, "width": 64}),
    (256, {"levels": 1, "depth": 2, "width": 9}),
    (66, {"levels": 1, "depth": 4, "width": 97}),
]
if DEVICE == "cpu":  # fewer steps and channels, straddling the same blocks: the interpreter takes its time by the block
    SHAPES = [
        (320, {"levels": 2, "depth": 1, "width": 32}),  # halves of more than one block
        (104, {"levels": 2, "depth": 1, "width": 17}),
        (72, {"levels": 1, "depth": 2, "width": 64}),
        (40, {"levels": 1, "depth": 1, "width": 9}),
        (66, {"levels": 1, "depth": 1, "width": 97}),
    ]
AFFINE = [(768, 32, "reversal"), (76, 16, "random"), (312, 70, "reversal")]
if DEVICE == "cpu":
    AFFINE = [(280, 32, "reversal"), (76, 16, "random"), (72, 70, "reversal")]


@pytest.mark.parametrize("number", BODIES["hidden"])
@pytest.mark.parametrize(("dim", "shape"), SHAPES)
def test_every_body_agrees_with_the_unfused_flow(dim, shape, number, monkeypatch):
    x = vectors(64, dim)
    use(monkeypatch, number, few=64)
    assert_body([make_trained_like(x, 1, **shape)], x[: {1: 1, 16: 17}.get(CONFIGURATIONS["hidden"][number].BM, 37)])


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_several_blocks_and_pieces(number, coupling, monkeypatch):
    x = vectors(97, 64)
    use(monkeypatch, number)
    flow = on_device(stages := [make_trained_like(x, 2, coupling=coupling, **SMALL)], 64)
    whole = run(flow, x)
    assert_as_good_as_unfused(whole, x, stages)
    monkeypatch.setattr(flow_triton, "PIECE", 48)
    assert np.array_equal(run(flow, x), whole), "pieces change no bit"


@pytest.mark.parametrize("number", BODIES["dense"])
@pytest.mark.parametrize("permutation", ["lu", "whiten, then reversal", "whiten", "reversal, then recolour"])
def test_dense_linears(permutation, number, monkeypatch):
    x = vectors(512, 120)
    shape = SMALL | {"width": 12}
    whiten = whitening(x, 88)
    if permutation == "lu":
        stages = [make_trained_like(x, 3, permutation="lu", **shape)]
    elif permutation == "reversal, then recolour":
        plain = make_trained_like(x, 3, **shape)
        stages = [plain, recolouring(apply([plain], x))]
    elif permutation == "whiten":
        stages = [whiten]
    else:
        stages = [whiten, make_trained_like(apply([whiten], x).astype(np.float32), 3, **shape)]
    use(monkeypatch, number, few=64)
    assert_body(stages, x[: 1 if CONFIGURATIONS["dense"][number].BM == 1 else 19])


@pytest.mark.parametrize("number", BODIES["state"])
@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize("dim", [256, pytest.param(768, marks=LONG)])
def test_steps_update_the_state_if_merging_takes_more_products(dim, front, number, monkeypatch):
    x = vectors(64, dim)
    stages = [whitening(vectors(512, dim), dim)] if front else []
    y = apply(stages, x).astype(np.float32)
    plain = make_trained_like(y, 3, levels=2, depth=2 if DEVICE == "cpu" else 6, width=64)
    stages += [plain, recolouring(apply([plain], y))]
    flow = on_device(stages, dim)
    assert [part.kind for part in flow.in_place] == ["dense"] * front + ["state", "dense"]
    assert {part.kind for part in flow.merged} == {"dense"}
    use(monkeypatch, number, few=0)
    rows = x[: 1 if CONFIGURATIONS["state"][number].BM == 1 else 21]
    z = run(flow, rows)
    assert_as_good_as_unfused(z, rows, stages)
    use(monkeypatch, number, few=64)
    assert not np.array_equal(run(flow, rows), z), "other sums"


@pytest.mark.parametrize("number", BODIES["state"])
@pytest.mark.parametrize(("dim", "width", "permutation"), AFFINE)
def test_affine_flows(dim, width, permutation, number, monkeypatch):
    x = vectors(64, dim)
    stage = make_trained_like(x, 4, levels=2, depth=2, width=width, coupling="affine", permutation=permutation)
    for name in (n for n in stage.params if n.endswith("bias3")):
        stage.params[name][1::4] -= 6  # every other gate nearly shut, its argument being negative
    stages = [stage]
    use(monkeypatch, number)
    rows = x[: 1 if CONFIGURATIONS["state"][number].BM == 1 else 21]
    flow = on_device(stages, dim)
    assert_as_good_as_unfused(run(flow, rows), rows, stages)


@pytest.mark.parametrize("name", ["in the package", pytest.param("flow", marks=LONG), "flow,recolour"])
def test_real_pooled_embeddings(name):
    """Sentences of the default model, as pooled and with two outlier channels such as BERT's."""
    novels = Path(__file__).parents[2] / "examples" / "novels.txt"
    pooled = fastflow.Runtime().pool(novels.read_text().split("\n")[:300])
    stages, x = list(load_model().calibration) if name == "in the package" else fitted(name, pooled), pooled[:9]
    assert_body(stages, x)
    x[:, [7, 100]] *= 30
    assert_body(stages, x)


@pytest.mark.parametrize("kind", ["standardize", "nullspace", "none"])
def test_calibrations_without_couplings(kind):
    for rows in (1, 3, 33):
        rng = np.random.default_rng(0)
        assert_body([] if kind == "none" else [make.LINEAR[kind](rng, 97)], vectors(64, 97)[:rows])


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize(("number", "rows"), [(0, 1), (1, 7), (1, 33), (2, 7), (2, 33)])
def test_normalised_rows_are_the_rows_divided_by_their_length(coupling, rows, number, monkeypatch):
    x = vectors(rows, 104)[:rows]
    stages = [make_trained_like(vectors(64, 104), 8, levels=2, depth=2, width=12, coupling=coupling)]
    use(monkeypatch, number)
    flow = on_device(stages, 104)
    z = run(flow, x).astype(np.float64)
    unit = run(flow, x, normalize=True)
    assert np.abs(unit - z / np.linalg.norm(z, axis=1, keepdims=True)).max() <= 3e-7
    assert np.abs(np.linalg.norm(unit.astype(np.float64), axis=1) - 1).max() <= 1e-6


VOCABULARY = 60
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHARES = (0.6, 0.3, 0.1)


def to_device(*arrays):
    return [torch.from_numpy(np.asarray(array, np.int32)).to(DEVICE) for array in arrays]


def make_texts(counts, dim, layers, dtype=torch.float32, weighted=False, shares=None):
    """hidden, offsets and ids on the device, a table of weights from 0.001 to 1 or None, and the exact vectors."""
    rng, offsets = np.random.default_rng(9), np.r_[0, np.cumsum(counts)]
    hidden = torch.from_numpy(rng.standard_normal((layers, offsets[-1], dim)) + 1).to(dtype)
    table = (10 ** rng.uniform(-3, 0, VOCABULARY)).astype(np.float32) if weighted else None
    ids = rng.integers(0, VOCABULARY, offsets[-1])
    weights = table[ids].astype(np.float64) if weighted else None
    parts = [reference.pool_mean(state, np.unique(offsets), weights) for state in hidden.double().numpy()]
    exact = np.zeros((len(counts), dim))
    exact[np.array(counts) > 0] = np.tensordot(shares or [1 / layers] * layers, parts, 1)
    return hidden.to(DEVICE), *to_device(offsets, ids), table, exact


def assert_near(z, exact, limit=LIMIT):
    z = z.cpu().numpy()
    assert z.shape == exact.shape
    assert np.isfinite(z).all()
    assert np.abs(z - exact).max() <= limit * np.abs(exact).max()


def test_layers_may_be_far_apart():
    """Further than 32 bits reach; memory that is not written takes no page."""
    hidden = torch.empty(3, (1 << 24) + 1, 64, dtype=torch.float16, device=DEVICE)
    hidden[:, :4] = torch.arange(3 * 4 * 64, device=DEVICE).view(3, 4, 64) / 768
    offsets, ids = to_device([0, 4], [0] * 4)
    exact = hidden[:, :4].double().mean(dim=(0, 1))[None].cpu().numpy()
    assert_near(on_device([], 64).pool(hidden, offsets, ids), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("counts", [[1, 15, 0, 17, 33, 16, 65], [33]], ids=["several", "one"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dim", "shares"), [(256, [1.0]), pytest.param(312, [0.5, 0.5], marks=LONG), (97, SHARES)])
def test_pooling(dim, shares, weighted, counts, dtype):
    """One text of up to POOL_FUSED tokens is pooled by the flow itself, several by a launch of their own."""
    layers = len(shares)
    hidden, offsets, ids, table, exact = make_texts(counts, dim, layers, dtype, weighted, shares)
    flow = on_device([], dim, table, shares if layers == 3 else None)
    pooled = flow.pool(hidden, offsets, ids)
    assert_near(pooled, exact, LIMIT if weighted else LIMIT / 4)
    assert_near(flow(hidden, offsets=offsets, ids=ids), exact)
    if layers == 1:
        assert torch.equal(flow.pool(hidden[0], offsets, ids), pooled)
    spare = torch.cat([hidden, torch.full((layers, 7, dim), torch.nan, dtype=dtype, device=DEVICE)], dim=1)
    texts = torch.cat([offsets, offsets[-1:], offsets[-1:]])
    bucket = flow.pool(spare, texts, torch.cat([ids, zeros(7, dtype=torch.int32)]))
    assert torch.equal(bucket[:-2], pooled), "a captured graph's spare tokens have no effect"
    assert not bucket[-2:].any()


EDGES = [[n] for n in (1, 16, 17, 64, 65)] + [[5, 40, 2]]
EDGES += [pytest.param([n], marks=LONG) for n in (15, 31, 32, 33, 63)]


@pytest.mark.parametrize("counts", EDGES, ids=str)
@pytest.mark.parametrize(("layers", "weighted"), [(1, False), (2, True)])
def test_a_flow_pools_on_the_way(counts, layers, weighted, monkeypatch):
    hidden, offsets, ids, table, exact = make_texts(counts, 128, layers, weighted=weighted)
    flow, names = on_device([], 128, table), []
    real = flow.launch
    monkeypatch.setattr(
        flow, "launch", lambda kernel, *a, **k: names.append(kernel.fn.__name__) or real(kernel, *a, **k)
    )
    assert_near(flow(hidden, offsets=offsets, ids=ids), exact)
    assert ("pool_mean" in names) == (len(counts) > 1 or counts[0] > POOL_FUSED)
    stages = [make_trained_like(vectors(64, 128), 10, levels=2, depth=2, width=16)]
    spare = torch.cat([hidden, torch.full((layers, 3, 128), torch.nan, device=DEVICE)], dim=1)
    ids = torch.cat([ids, zeros(3, dtype=torch.int32)])
    for unit in (False, True):
        z = on_device(stages, 128, table)(spare, unit, offsets, ids).cpu().numpy()
        wanted, unfused = (apply([stages[0].astype(dtype)], exact.astype(dtype)) for dtype in (np.float64, np.float32))
        if unit:
            wanted, unfused = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (wanted, unfused))
        assert error(z, wanted) <= 2 * error(unfused, wanted) + FLOOR


def test_only_ratios_of_weights_count():
    hidden, offsets, ids, table, _ = make_texts([3, 20], 64, 2, weighted=True)
    *_, means = make_texts([3, 20], 64, 2)

    def pool(weights):
        return on_device([], 64, weights).pool(hidden, offsets, ids)

    assert torch.equal(pool(table * 4), pool(table))
    assert torch.equal(pool(None), on_device([], 64).pool(hidden, offsets)), "without weights ids are not read"
    assert_near(pool(np.full(VOCABULARY, 0.3, np.float32)), means)


def test_no_rows_and_no_texts_give_empty_results():
    stages = [make_trained_like(vectors(64, 64), 11, levels=2, depth=2, width=8)]
    flow = on_device(stages, 64)
    none = zeros(0, 64)
    assert flow(none).shape == flow(none, normalize=True).shape == (0, 64)
    assert flow(none, offsets=zeros(1, dtype=torch.int32)).shape == (0, 64)


def zeros(*size, dtype=torch.float32, device=DEVICE):
    return torch.zeros(size, dtype=dtype, device=device)


@pytest.mark.parametrize("texts", [[0, 3], [0, 1, 3]], ids=["fused", "separate"])
def test_weighted_pooling_without_fitting_ids_is_refused(texts):
    flow = on_device([], 64, weights=np.ones(VOCABULARY, np.float32))
    hidden, offsets = zeros(3, 64), torch.tensor(texts, dtype=torch.int32, device=DEVICE)
    for ids, words in (
        (None, r"ids, \(3,\) of int32, and none are given"),
        (zeros(2, dtype=torch.int32), r"these are \(2,\)"),
        (zeros(3), "of torch.float32"),
        (zeros(3, dtype=torch.int32, device="meta"), "move it"),
    ):
        with pytest.raises(ValueError, match=words):
            flow.pool(hidden, offsets, ids)
        with pytest.raises(ValueError, match=words):
            flow(hidden, False, offsets, ids)


def test_wrong_arguments_are_refused_in_one_sentence():
    f = on_device([], 64)
    for call, words in (
        (lambda: f(zeros(3, 63)), "must be"),
        (lambda: f(zeros(64)), "must be"),
        (lambda: f(zeros(3, 64, dtype=torch.float64)), "float64"),
        (lambda: f(zeros(3, 64, device="meta")), "move it"),
        (lambda: f(zeros(3, 64), offsets=zeros(2)), "int32"),
        (lambda: f.pool(zeros(3, 64), zeros(2, dtype=torch.int32, device="meta")), "move"),
        (lambda: on_device([], 64, shares=SHARES).pool(zeros(2, 3, 64), *to_device([0, 3])), "3 shares do not fit"),
        (lambda: on_device([], 64, weights=np.ones(9)), r"weights must be \(vocabulary,\) of float32"),
        (lambda: on_device([], 64, weights=np.ones((9, 1), np.float32)), r"weights must be \(vocabulary,\) of float32"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


@settings(deadline=None, derandomize=True, max_examples=10 if DEVICE == "cpu" else 20)
@given(
    levels=st.integers(1, 4), depth=st.integers(1, 4), width=st.sampled_from([1, 7, 16, 31, 33, 65]),
    channels=st.integers(1, 9), rows=st.sampled_from([1, 2, 17]), coupling=st.sampled_from(["additive", "affine"]),
    permutation=st.sampled_from(["reversal", "random"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_random_flows(channels, rows, seed, **shape):
    x = vectors(64, channels << shape["levels"], seed)
    assert_body([make_trained_like(x, seed, **shape)], x[:rows])


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter computes in float32 whatever is asked for; needs a GPU")
@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("rows", [1, 2, 64, 1000, 2049, 9000, 70_000])
def test_every_batch_regime_on_a_gpu(rows, coupling):
    x = vectors(rows, 768)[:rows]
    stages = [make_trained_like(vectors(512, 768), 12, levels=3, depth=3, width=32, coupling=coupling)]
    exact = apply([stages[0].astype(np.float64)], x.astype(np.float64))
    assert error(run(on_device(stages, 768), x), exact) <= 2e-6
