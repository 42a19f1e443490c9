"""int8 and uint8 vectors of models whose calibration does not end in unit variance: the range that export measures."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model
from fastflow.model.hashing import MANIFEST
from fastflow.model.manifest import CALIBRATION
from fastflow.model.verify import verify
from fastflow.stages.calibration import apply
from fastflow.stages.truncation import BLOCK, SAMPLE, SPREAD, fit_spread
from fastflow.stages.vectors import quantise
from fastflow.train.methods.against import fit_named

from support.builders import make_model
from support.commands import make_train
from support.spoil import spoil_arrays

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


def test_levels_are_of_one_range():
    z, spread = uneven(400, 6).astype(np.float32), np.array([8, 1, 1, 2, 2, 3], np.float32)
    step = 4 * 8 / 127
    assert np.array_equal(quantise(z, "int8", False, spread), np.rint(z / step))
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    step /= np.sqrt(64 + 1 + 1 + 4 + 4 + 9)
    assert np.abs(quantise(unit, "int8", True, spread) - unit / step).max() <= 0.501


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flow", "whiten", "standardize"])
def test_other_calibrations_store_none(tmp_path, bert, sentences, method):
    made = load_model(make_model(tmp_path / "m", bert, sentences, method, ordered=True))
    assert made.spread is None
    assert SPREAD not in load_file(made.path / CALIBRATION)


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


@pytest.mark.parametrize(
    "change",
    [lambda s: s[:-1].copy(), lambda s: s[None], lambda s: s.astype(np.float64), lambda s: -s, lambda s: 0 * s]
    + [lambda s, v=v: np.where(np.arange(len(s)) == 5, np.float32(v), s) for v in (0, np.nan, np.inf)],
)
def test_a_damaged_array_is_named(tmp_path, bert, sentences, change):
    made = make_model(tmp_path / "m", bert, sentences, "nullspace:2", ordered=True)
    spoil_arrays(made, lambda arrays: arrays.update({SPREAD: change(arrays[SPREAD])}))
    message = r"calibration\.safetensors, array spread: must be float32 of shape \(32,\), finite and above 0"
    with pytest.raises(FastflowError, match=message):
        load_model(made)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["nullspace"], ["nullspace", "--stream"], ["none"]], ids=" ".join)
def test_training_stores_it(tmp_path, bert, corpus, sentences, options):
    train = make_train(bert, corpus, tmp_path)
    made = tmp_path / "m"
    assert train("--method", *options, "--stop", "budget", "--max-length", 64, out=made).exit_code == 0
    z = Runtime(made, backend="reference").encode(sentences)
    assert np.abs(load_model(made).spread / np.sqrt(np.square(z).mean(axis=0)) - 1).max() <= 1e-4
