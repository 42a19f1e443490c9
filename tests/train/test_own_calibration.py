"""A user's calibration: scikit-learn's contract, saved if it is linear, else in Python; and the recipes of papers."""

import json
import pickle

import numpy as np
import pytest
from click.testing import CliRunner

import fastflow
from fastflow.commands.train import train as main
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.flow import equations, execute
from fastflow.plan import fold
from fastflow.train.options import DEFAULTS, PRESETS, make_options
from fastflow.transforms.calibration import Stage, check

from support.matrices import make_vectors


class Projection:
    """Principal directions, scaled and shifted: linear."""

    def __init__(self, width=3):
        self.width = width

    def fit(self, X):
        assert X.dtype == np.float32
        self.mean = X.mean(axis=0)
        self.axes = np.linalg.svd(X - self.mean, full_matrices=False)[2][: self.width].T
        return self

    def transform(self, X):
        return (X - self.mean) @ self.axes * 2 + 1


class Squash(Projection):
    """No linear map."""

    def transform(self, X):
        return np.tanh(super().transform(X))


def compare(found, wanted):
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.fixture
def fitted(bert, sentences):
    def fit(calibration, **options):
        options = {"token_weights": "none", "pooling": "last"} | options
        return fastflow.fit(sentences, bert, calibration=calibration, **options)

    return fit


def test_a_linear_calibration_is_saved_and_gives_its_own_vectors(fitted, sentences, tmp_path):
    fit = fitted(own := Projection())
    assert fit.report["calibration"] == "linear(3)"
    assert fit.report["method"] == "Projection"
    fit.save(tmp_path / "model")
    wanted = own.transform(fit.pooled[:5])
    for backend in ("reference", "auto", "torch"):
        with fastflow.Runtime(tmp_path / "model", dtype="float32", backend=backend) as runtime:
            compare(runtime.encode(fit.texts[:5]), wanted)
    assert "linear(3)" in (tmp_path / "model" / "README.md").read_text()


def test_another_calibration_runs_in_python_and_is_not_saved(fitted, tmp_path):
    fit = fitted(own := Squash())
    assert fit.report["calibration"] == "Squash in Python"
    runtime, wanted = fit.runtime(dtype="float32"), own.transform(fit.pooled[:5])
    compare(runtime.encode(fit.texts[:5]), wanted)
    compare(runtime.transform(fit.pooled[:5]), wanted)
    short = runtime.encode(fit.texts[:5], normalize_embeddings=True, truncate_dim=2)
    compare(short, wanted[:, :2] / np.linalg.norm(wanted[:, :2], axis=1, keepdims=True))
    assert runtime.info()["calibration"] == "Squash in Python"
    assert runtime.fingerprint != fitted(Squash(2)).runtime().fingerprint
    for save in (lambda: fit.save(tmp_path / "model"), lambda: pickle.dumps(runtime)):
        with pytest.raises(UsageError, match="Squash in Python is not linear, so no model or copy of it can be saved"):
            save()
    assert not (tmp_path / "model").exists()


def test_scores_are_of_the_calibration_in_python(fitted, tmp_path):
    lines = ["subset\tscore\tsentence1\tsentence2", *(f"a\t{i}\tdog {i}\tcat sat {i * i}" for i in range(8))]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    fit = fitted(Squash(), eval=tmp_path / "pairs.tsv")
    scores = fit.measures["spearman"]
    assert scores["after"] != scores["before"]
    with fit.runtime() as runtime:
        from fastflow.evaluation.evaluate import evaluate, find_sets

        assert evaluate(runtime.encode, find_sets([tmp_path / "pairs.tsv"])) == scores["after"]


def test_a_calibration_of_vectors(tmp_path):
    vectors = make_vectors()
    fit = fastflow.fit(vectors, calibration=(own := Projection(4)))
    fit.save(tmp_path / "model")
    compare(fastflow.Runtime(tmp_path / "model").transform(vectors[:7]), own.transform(vectors[:7]))
    with pytest.raises(UsageError, match="a calibration of vectors that is not linear has no Runtime"):
        fastflow.fit(vectors, calibration=Squash()).runtime()


def test_refusals(fitted, sentences, bert, tmp_path):
    with pytest.raises(UsageError, match=r"calibration must have fit\(X\) and transform\(X\), and int has no fit"):
        fitted(3)
    with pytest.raises(UsageError, match="calibration is fitted in place of a method: leave out method='whiten'"):
        fitted(Projection(), method="whiten")
    with pytest.raises(UsageError, match="stream= keeps sums of a corpus"):
        fitted(Projection(), stream=True)
    with pytest.raises(UsageError, match="depth= is of flow, which method=own lacks"):
        fitted(Projection(), depth=2)
    odd = Projection()
    for wrong, fault in ((np.zeros(3), r"gave float64 of shape \(3,\)"), (np.zeros((5, 2), int), "gave int64")):
        odd.transform = lambda X, wrong=wrong: wrong
        with pytest.raises(FastflowError, match=fault):
            fitted(odd)
    odd.transform = lambda X: np.full((len(X), 2), np.nan)
    with pytest.raises(FastflowError, match="gave NaN or infinity for the rows it was fitted on"):
        fitted(odd)
    (tmp_path / "c.txt").write_text("\n".join(sentences))
    done = CliRunner().invoke(main, [str(tmp_path / "c.txt"), "--encoder", str(bert), "--method", "own", "-o", "x"])
    assert done.exit_code == 2
    assert "--method own is an object, the argument calibration of fastflow.fit" in done.stderr


def test_a_linear_stage_folds_to_its_equation_and_its_shapes_are_checked():
    rng = np.random.default_rng(0)
    matrix, shift, x = rng.normal(size=(6, 4)), rng.normal(size=4), rng.normal(size=(5, 6))
    (plan,) = fold([Stage("linear", {}, {"matrix": matrix, "shift": shift})], 6)
    compare(execute(plan, x), equations.linear(x, matrix, shift))
    with pytest.raises(FastflowError, match="array shift: must be as long as a row of matrix"):
        check([Stage("linear", {}, {"matrix": matrix, "shift": shift[:3]})], 6)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_its_options_and_is_recorded(preset, bert, sentences, tmp_path):
    options = make_options({"preset": preset})
    assert {name: getattr(options, name) for name in PRESETS[preset]} == PRESETS[preset]
    fastflow.fit([f"{text} {i}" for i in range(20) for text in sentences], bert, preset=preset).save(tmp_path / "model")
    training = json.loads((tmp_path / "model" / "fastflow.json").read_text())["training"]
    assert training["preset"] == preset
    assert training["method"] == PRESETS[preset]["method"]


def test_a_preset_and_an_option_that_contradict_are_refused():
    assert PRESETS["paper"].keys() == {
        "method", "pooling", "token_weights", "latent", "stop", "depth", "width", "init",
    }  # fmt: skip
    assert make_options({"preset": "paper", "lr": 2e-5, "method": "flow"}).lr == 2e-5
    for name, value in (("depth", 4), ("method", "whiten"), ("pooling", "cls")):
        with pytest.raises(UsageError, match=f"--{name} and --preset paper decide the same: leave one out"):
            make_options({"preset": "paper", name: value})
    assert DEFAULTS.preset == "none"
