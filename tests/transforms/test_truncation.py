"""truncate_dim: the order of directions that a model may hold; int8 and uint8: the range that export measures."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model
from fastflow.model.hashing import MANIFEST
from fastflow.model.manifest import CALIBRATION
from fastflow.model.verify import verify
from fastflow.train.methods import fit_named
from fastflow.transforms.calibration import Stage, apply
from fastflow.transforms.truncation import (
    BLOCK,
    SAMPLE,
    SPREAD,
    fit_spread,
    fit_truncation,
    leading_directions,
    read_spread,
    read_truncation,
    write_truncation,
)

from support.builders import make_model
from support.commands import make_train
from support.refusals import INF, NAN, refuses

DIM = 32  # of the test encoder
CHAINS = [("flow", {}), ("flow", {"coupling": "affine"}), ("flow", {"permutation": "lu"}), ("whiten:16,flow", {})]


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def standardized(n, d, seed=0):
    """Correlated vectors (n, d) and the stage that standardizes them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)
    return x, Stage("standardize", {}, {"mean": x.mean(axis=0), "deviation": x.std(axis=0)})


@pytest.mark.parametrize("n", [3, 500, BLOCK + 1, 2 * SAMPLE + 5])
def test_basis_is_the_singular_vectors_of_the_covariance_with_the_pooled_vectors(n):
    x, stage = standardized(n, 6)
    rows = x[:: -(-n // SAMPLE)]
    assert len(rows) <= SAMPLE
    z = apply([stage], rows)
    found = leading_directions([stage], x)
    assert np.abs(found.basis.T @ found.basis - np.eye(6)).max() <= 1e-6
    cross = (z - z.mean(axis=0)).T @ (rows - rows.mean(axis=0)) / len(rows)
    values = np.linalg.svd(cross)[1]
    explained = np.linalg.norm(found.basis.astype(np.float64).T @ cross, axis=1)
    assert np.abs(explained - values).max() <= 1e-5 * values[0]
    assert np.abs(found.deviation - np.sqrt(np.square(z @ found.basis).mean(axis=0))).max() <= 1e-5
    assert (found.basis[np.abs(found.basis).argmax(axis=0), np.arange(6)] > 0).all()


def test_the_leading_direction_varies_most_and_what_is_in_order_gets_no_basis():
    rng = np.random.default_rng(0)
    x = np.outer(rng.normal(size=4000), [2, 1, 0, 0]) + 0.1 * rng.normal(size=(4000, 4))
    found = leading_directions([Stage("nullspace", {}, {"mean": np.zeros(4), "directions": np.zeros((0, 4))})], x)
    assert np.abs(found.basis[:, 0] - np.array([2, 1, 0, 0]) / np.sqrt(5)).max() <= 0.01
    x, stage = standardized(100, 6)
    white = Stage("whiten", {}, {"mean": np.zeros(6), "matrix": np.eye(6)[:, :4]})
    for chain in ([], [stage], [stage, white]):
        assert fit_truncation(chain, x) is None


def test_behind_a_whitening_the_order_is_the_whitenings():
    x, _ = standardized(500, 6)
    (white,) = fit_named("whiten", x)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    found = leading_directions([white, Stage("whiten", {}, {"mean": np.zeros(6), "matrix": turn})], x)
    assert np.abs(np.abs(turn @ found.basis) - np.eye(6)).max() <= 1e-4


@pytest.fixture(scope="module", params=range(len(CHAINS)), ids=[f"{m} {s}" for m, s in CHAINS])
def both(request, tmp_path_factory, bert, sentences):
    """One calibration saved with an order of directions and without."""
    method, settings = CHAINS[request.param]
    folder = tmp_path_factory.mktemp("cut")
    return tuple(
        make_model(folder / f"{ordered}", bert, sentences, method, ordered=ordered, **settings)
        for ordered in (True, False)
    )


def test_the_whole_embedding_is_left_alone(both, backend, sentences):
    ordered, plain = (Runtime(path, backend=backend).encode(sentences[:9]) for path in both)
    assert np.array_equal(ordered, plain)


def test_kept_are_the_leading_directions_on_every_backend(both, backend, sentences):
    held = load_model(both[0]).truncation
    exact = Runtime(both[0], dtype="float64").encode(sentences[:33]) @ held.basis.astype(np.float64)
    rt = Runtime(both[0], backend=backend, dtype="float32")
    assert rt.info()["truncation"] == "leading directions"
    for k in (1, 7, 16, *([DIM] if rt.dim == DIM else [])):
        cut = rt.encode(sentences[:33], truncate_dim=k)
        assert (cut.shape, cut.dtype) == ((33, k), np.float32)
        scale = np.linalg.norm(exact, axis=1).max()
        assert np.abs(cut - exact[:, :k]).max() <= 1e-5 * scale
        short = rt.encode(sentences[:33], truncate_dim=k, normalize_embeddings=True)
        assert np.abs(np.linalg.norm(short, axis=1) - 1).max() <= 1e-5
        assert np.abs(short - unit(cut)).max() <= 1e-6
    assert rt.encode([], truncate_dim=7).shape == (0, 7)


@pytest.mark.parametrize("normalize", [False, True])
def test_all_directions_keep_every_cosine_and_int8_of_a_cut_nearly(both, sentences, normalize):
    rt = Runtime(both[0])

    def encode(dim, **options):
        return rt.encode(sentences, truncate_dim=dim, normalize_embeddings=normalize, **options)

    coarse = encode(12, precision="int8")
    assert coarse.dtype == np.int8
    assert (np.abs(coarse.astype(int)) == 127).mean() <= 0.01
    for one, other, limit in ((encode(None), encode(rt.dim), 1e-5), (encode(12), coarse, 0.05)):
        assert np.abs(rt.similarity(one, one) - rt.similarity(other, other)).max() <= limit


def test_a_model_without_an_order_keeps_its_first_dimensions(both, sentences):
    rt = Runtime(both[1])
    assert rt.info()["truncation"] == "first dimensions, in no order"
    assert np.array_equal(rt.encode(sentences[:5], truncate_dim=7), rt.encode(sentences[:5])[:, :7])


@pytest.mark.slow
def test_training_stores_the_order(tmp_path, bert, corpus):
    train = make_train(bert, corpus, tmp_path)
    common = ("--stop", "budget", "--max-length", 64)
    leads, batch = "first dimensions, which lead", ("--batch-size", "32")  # a whitening and recolour order them
    for options, kept in (
        (("--latent", *batch), "leading directions"),
        (batch, leads),
        (("--method", "whiten"), leads),
    ):
        out = tmp_path / ("m" + "".join(options))
        assert train(*options, *common, out=out).exit_code == 0
        assert Runtime(out).info()["truncation"] == kept


SOUND = {"truncation.basis": np.eye(4, dtype=np.float32), "truncation.deviation": np.ones(4, np.float32)}
SOUND |= {SPREAD: np.ones(4, np.float32)}
BASIS, DEVIATION, WIDTHS = (f"here, array {name}: " for name in SOUND)
NO_SPREADS = [lambda a: a[:-1], lambda a: a[None], lambda a: a.astype(np.float64), lambda a: -a]
NO_SPREADS += [lambda a, last=last: np.float32([1, 1, 1, last]) for last in (0, NAN, INF)]
FAULTS = [
    ("truncation.basis", lambda a: 1.01 * a, f"{BASIS}its columns are not orthonormal"),
    ("truncation.basis", lambda a: a[:, :3], f"{BASIS}must be finite float32 of shape (4, 4)"),
    ("truncation.deviation", lambda a: a * np.float32(NAN), f"{DEVIATION}must be finite"),
    ("truncation.deviation", lambda a: None, "here: array truncation.deviation is missing"),
    *((SPREAD, fault, f"{WIDTHS}must be float32 of shape (4,), finite and above 0") for fault in NO_SPREADS),
]


@pytest.mark.parametrize(("name", "fault", "sentence"), FAULTS)
def test_a_damaged_array_is_named(name, fault, sentence):
    assert read_truncation(write_truncation(read_truncation(SOUND, 4, "here")), 4, "here") is not None
    assert read_spread(SOUND, 4, "here") is not None
    assert read_truncation({}, 4, "here") is read_spread({}, 4, "here") is None
    spoilt = SOUND | {name: fault(SOUND[name])}
    arrays = {name: array for name, array in spoilt.items() if array is not None}
    refuses(lambda arrays: (read_truncation(arrays, 4, "here"), read_spread(arrays, 4, "here")), arrays, sentence)


# ---- the range of int8 and uint8

OPEN = ["none", "nullspace:2", "whiten:16,nullspace:1"]  # what leaves the variance open


@pytest.fixture(scope="module", params=OPEN)
def measured(request, tmp_path_factory, bert, sentences):
    """A model that stores how wide its outputs spread."""
    return make_model(tmp_path_factory.mktemp("spread") / "m", bert, sentences, request.param, ordered=True)


def uneven(n, d, seed=0):
    """(n, d): dimensions of unlike width, off centre, one far."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.linspace(0.2, 3, d) + np.eye(d)[0] * 8


@pytest.mark.parametrize("n", [2, 500, BLOCK + 1, 2 * SAMPLE + 5])
def test_it_is_the_root_mean_square_of_a_sample(n):
    x = uneven(n, 6)
    (stage,) = fit_named("nullspace:1", uneven(50, 6, seed=1))
    for chain in ([], [stage]):
        found = fit_spread(chain, x)
        want = np.sqrt(np.square(apply(chain, x[:: -(-n // SAMPLE)])).mean(axis=0))
        assert (found.shape, found.dtype) == ((6,), np.float32)
        assert np.abs(found / want - 1).max() <= 1e-6


def test_unit_variance_needs_no_measure_and_what_has_no_width_gets_none():
    for method in ("standardize", "whiten", "nullspace:1,whiten:3"):
        assert fit_spread(fit_named(method, uneven(100, 6)), uneven(100, 6)) is None
    assert fit_spread([Stage("flow")], uneven(100, 6)) is None
    for value in (np.nan, np.inf, 1e300):
        x = uneven(100, 6)
        x[:, 3] = value
        with np.errstate(over="ignore"):
            assert fit_spread([], x) is None


def test_a_dimension_that_is_always_0_takes_the_largest_width():
    x = uneven(100, 6)
    x[:, 3] = 0.0
    spread = fit_spread([], x)
    assert spread[3] == np.delete(spread, 3).max()
    assert fit_spread([], np.zeros((9, 6))) is None


@pytest.mark.parametrize("precision", ["int8", "uint8"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dim", [None, 12])
def test_cosines_keep(measured, sentences, precision, normalize, dim):
    rt = Runtime(measured)
    exact = rt.encode(sentences, truncate_dim=dim, normalize_embeddings=normalize)
    coarse = rt.encode(sentences, truncate_dim=dim, normalize_embeddings=normalize, precision=precision)
    assert (coarse.shape, coarse.dtype) == (exact.shape, np.dtype(precision))
    levels = coarse.astype(int) - (128 if precision == "uint8" else 0)
    assert (np.abs(levels) == 127).mean() <= 0.001
    assert np.abs(levels).max() >= 32  # a quarter of the range is the root mean square of the widest dimension
    assert np.abs(rt.similarity(exact, exact) - rt.similarity(levels, levels)).max() <= 0.03
    assert rt.encode([], truncate_dim=dim, precision=precision).shape == (0, exact.shape[1])


@pytest.mark.parametrize("method", ["none", "nullspace:2"])
@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_a_model_saved_without_is_refused(tmp_path, bert, sentences, method, precision):
    made = make_model(tmp_path / "m", bert, sentences, method)
    assert (made / CALIBRATION).is_file() == (method != "none")
    with pytest.raises(UsageError, match=f"precision '{precision}' needs .* this model stores none"):
        Runtime(made).encode(sentences[:3], precision=precision)
    assert Runtime(made).encode(sentences[:3], precision="ubinary").shape == (3, 4)


@pytest.mark.slow
def test_a_raw_model_holds_nothing_else_and_a_file_that_is_not_listed_is_not_read(tmp_path, bert, sentences):
    plain, made = (make_model(tmp_path / str(o), bert, sentences, "none", ordered=o) for o in (False, True))
    assert list(load_file(made / CALIBRATION)) == [SPREAD]
    assert verify(made)
    assert np.array_equal(Runtime(made).encode(sentences[:9]), Runtime(plain).encode(sentences[:9]))
    (plain / CALIBRATION).write_bytes((made / CALIBRATION).read_bytes())
    assert load_model(plain).spread is None
    with pytest.raises(FastflowError, match=rf"holds files that {MANIFEST} does not list: {CALIBRATION}"):
        verify(plain)
    (made / CALIBRATION).write_bytes((made / CALIBRATION).read_bytes()[:-1])
    with pytest.raises(FastflowError, match=r"calibration\.safetensors is damaged: its sha256 differs"):
        load_model(made)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["nullspace"], ["nullspace", "--stream"], ["none"]], ids=" ".join)
def test_training_stores_it(tmp_path, bert, corpus, sentences, options):
    train = make_train(bert, corpus, tmp_path)
    made = tmp_path / "m"
    assert train("--method", *options, "--stop", "budget", "--max-length", 64, out=made).exit_code == 0
    z = Runtime(made, backend="reference").encode(sentences)
    assert np.abs(load_model(made).spread / np.sqrt(np.square(z).mean(axis=0)) - 1).max() <= 1e-4
