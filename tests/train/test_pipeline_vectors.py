"""A closed form of vectors made elsewhere: what is fitted, what decides, what is refused."""

import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import fastflow
from fastflow.commands.train import train as main
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.matrix import MatrixRows
from fastflow.model.artifact import load_model, open_model
from fastflow.model.verify import verify
from fastflow.train.pipeline.vectors import OPTIONS, draw, recommend_method

from support.matrices import make_vectors

CALIBRATION = "calibration.safetensors"


def train(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.stderr
    assert "please report it" not in result.stderr
    assert result.exit_code == code, result.stderr
    return result.stderr


def fit_params(x, method="standardize", **options):
    return fastflow.fit(x, method=method, **options).stages[0].params


@pytest.fixture
def npy(tmp_path):
    np.save(tmp_path / "v.npy", make_vectors())
    return tmp_path / "v.npy"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["standardize", "components:1", "nullspace:3", "whiten", "whiten:8"])
def test_the_vectors_of_texts_give_the_calibration_of_the_texts(bert, sentences, method, tmp_path):
    texts = fastflow.fit(sentences, bert, method, token_weights="none", stop="budget")
    texts.save(tmp_path / "texts")
    fastflow.fit(texts.pooled, method=method).save(tmp_path / "vectors")
    np.save(tmp_path / "pooled.npy", texts.pooled)
    train(tmp_path / "pooled.npy", "-o", tmp_path / "command", "--method", method)
    wanted, *found = ((tmp_path / name / CALIBRATION).read_bytes() for name in ("texts", "vectors", "command"))
    assert found == [wanted, wanted]
    ours, theirs = (fastflow.Runtime(tmp_path / name) for name in ("vectors", "texts"))
    assert np.array_equal(ours.transform(texts.pooled), theirs.transform(texts.pooled))


def test_how_vectors_lie_in_memory_changes_nothing(tmp_path):
    x = make_vectors().astype(np.float16).astype(np.float32)  # exact in each of the forms
    np.save(tmp_path / "x.npy", x)
    forms = [x.astype(form) for form in ("float64", "float16", ">f4")]
    forms += [np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2], np.load(tmp_path / "x.npy", mmap_mode="r")]
    wanted = fit_params(x, "whiten")
    for given in forms:
        found = fit_params(given, "whiten")
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted), given.dtype


def test_auto_is_one_fixed_method_and_a_named_one_is_kept_unjudged(npy, tmp_path):
    for dim, method in ((256, "nullspace:10"), (100, "nullspace:10"), (32, "nullspace:3"), (3, "nullspace:1")):
        assert recommend_method(dim) == method
    for method, chosen, rule, reason in (
        ("auto", "nullspace:3", "fixed", "auto took nullspace:3, which is fixed: without an encoder"),
        ("whiten:4,standardize", "", "named", "whiten:4,standardize was kept as it was fitted: without an encoder"),
    ):
        out = tmp_path / method
        said = train(npy, "-o", out, "--method", method)
        assert f"{reason} there are no dropout views, so nothing judged" in said
        assert reason in (card := (out / "README.md").read_text())
        model = open_model(out)
        training = model.manifest["training"]
        assert training["choice"] == {"rule": rule, "looks": [], "chosen": chosen or method}
        assert reason in training["reasons"][0]
        assert training["source"] == "v.npy"  # and no folder of this machine
        assert str(tmp_path) not in card
        assert model.input_dim == 32
        assert verify(out)[0] == "2 files match their sha256"


FLAGS = (
    "--encoder default|--pooling first-last|--token-weights none|--max-length 64|--encoder-dropout|--eval .|"
    "--sentences|--stream|--device cpu|--cache-folder c|--reference-encoder|--text-field a|--format txt|"
    "--delimiter ,|--no-header|--errors strict|--stop budget|--levels 2|--seed 1 --lr 1|--log-dir d|--resume"
)


def test_options_of_texts_are_refused_by_name_even_at_their_default(npy, tmp_path):
    for flags in FLAGS.split("|"):
        named = flags.split()[-2 if "--seed" in flags else 0]
        said = train(npy, "-o", tmp_path / "m", *flags.split(), code=2)
        assert said == f"fastflow: {named} is for texts and their encoder, and these are vectors: leave it out\n"
        assert not (tmp_path / "m").exists()
    others = {"encoder": "c", "cache_folder": "c", "eval": "c", "log_dir": "c", "pooling": "last", "depth": 2}
    for name, value in (others | {"token_weights": "none", "device": "cuda", "language": "de", "lr": 1.0}).items():
        with pytest.raises(UsageError, match=f"^{name}= is for texts and their encoder") as refused:
            fastflow.fit(make_vectors(), **{name: value})
        assert refused.value.option == name
        assert name not in OPTIONS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "none"}, "^method=none leaves vectors as they are"),
        ({"method": "whiten:33"}, "whiten:33 is out of range"),
        ({"spectrum": 0.3}, "^spectrum= is of recolour, which method=nullspace lacks"),
        ({"method": "whiten:8,flow"}, r"^method=whiten:8,flow trains a flow, .*: name a closed form, nullspace\[:K\]"),
    ],
)
def test_options_that_no_fit_to_vectors_can_have(options, message):
    with pytest.raises(FastflowError, match=message):
        fastflow.fit(make_vectors(), **options)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (make_vectors()[0], r"vectors come as a matrix \(N, D\), and this has the shape \(32,\)"),
        (make_vectors()[None], r"the shape \(1, 400, 32\)"),
        (make_vectors()[:, :0], r"the shape \(400, 0\)"),
        (np.ones((9, 4), np.int8), "vectors are float16, float32, float64, and this holds 'int8'"),
        (np.where(np.arange(400)[:, None] == 7, np.nan, make_vectors()), "row 7: holds NaN or infinity"),
        (np.full((50, 4), 0.1), "all rows are equal"),
        (make_vectors()[:0], "0 rows are too few, at least 5 are needed for nullspace"),
    ],
)
def test_a_matrix_that_cannot_be_fitted(vectors, message):
    with pytest.raises(FastflowError, match=f"^vectors given in Python.*{message}"):
        fastflow.fit(vectors)


def test_constant_vectors_are_named_and_stay_0():
    x = make_vectors()
    x[:, 3], x[:, 9] = 0.5, x[:, 8]
    fit = fastflow.fit(x, method="whiten")
    named = ["1 of 32 channels is constant in these vectors and stays 0.",
             "1 of 32 directions is constant in these vectors and stays 0."]  # fmt: skip
    assert fit.report["notes"] == named
    assert not fit.runtime().transform(x)[:, 30:].any()
    assert fastflow.fit(x, method="standardize").report["notes"] == named[:1]
    assert not {*named} & {*fastflow.fit(x, method="components").report["notes"]}
    asked = "2 of the 32 directions are constant over the 400 vectors, and 31 of them are asked for; use wh"
    left = "400 vectors span 30 dimensions, and removing 30 leaves nothing; give more vectors"
    for method, message in (("whiten:31", asked), ("nullspace:30", left)):
        with pytest.raises(FastflowError, match=message):
            fastflow.fit(x, method=method)


@pytest.mark.parametrize(("method", "rows"), [("whiten:8", 9), ("nullspace:4", 6), ("standardize", 2), ("auto", 5)])
def test_the_least_number_of_rows_is_enough(method, rows):
    x = make_vectors(1000)
    assert fastflow.fit(x[:rows], method=method).stages
    with pytest.raises(FastflowError, match=f"at least {rows} are needed"):
        fastflow.fit(x[: rows - 1], method=method)


def test_rows_of_zeros_are_a_warning_that_names_the_first(monkeypatch):
    x = make_vectors()
    x[[7, 30]] = 0
    for block in (4, 16, 8192):
        monkeypatch.setattr("fastflow.train.pipeline.vectors.BLOCK", block)
        with pytest.warns(UserWarning, match="2 of 400 vectors are all zeros, the first is row 7"):
            fit = fastflow.fit(x, method="standardize")
        assert "all zeros" in fit.report["warnings"][0]
        assert np.allclose(fit.stages[0].params["deviation"], x.astype(np.float64).std(axis=0), rtol=1e-10)
    picked = draw(MatrixRows(x, "x"), 350, 5)
    zeros = [picked.number(i) for i in range(350) if not picked[i : i + 1].any()]
    with pytest.warns(UserWarning, match=f"{len(zeros)} of 350 vectors .* the first is row {zeros[0]}:"):
        fastflow.fit(x, method="standardize", sample=350, seed=5)


def test_a_sample_is_drawn_by_the_seed_from_all_rows():
    x = make_vectors()

    def mean(**options):
        fit = fastflow.fit(x, method="standardize", **options)
        assert fit.report["vectors"] == min(400, options.get("sample", 400))
        return fit.stages[0].params["mean"].tolist()

    assert mean(sample=100, seed=1) == mean(sample=100, seed=1) != mean(sample=100, seed=2)
    assert mean(sample=4000) == mean()


@pytest.mark.slow
def test_a_fit_in_python_is_the_fit_of_the_command(npy, tmp_path):
    vectors = np.load(npy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fastflow.fit(vectors, method="whiten,recolour", seed=4, sample=300)
    assert repr(fit) == "<Fit: whiten(32) -> recolour(spectrum 0.75, mean share 0, 2 demoted), fitted on 300 vectors>"
    assert (fit.encoder, fit.texts, fit.report["pooling"]) == (None, [], None)
    json.dumps(fit.report)
    fit.save(tmp_path / "python")
    train(npy, "-o", tmp_path / "command", "--method", "whiten,recolour", "--seed", 4, "--sample", 300)
    assert (tmp_path / "python" / CALIBRATION).read_bytes() == (tmp_path / "command" / CALIBRATION).read_bytes()
    with fit.runtime() as runtime:
        assert np.array_equal(runtime.transform(vectors), fastflow.Runtime(tmp_path / "python").transform(vectors))
    with pytest.raises(UsageError, match="reference_encoder needs an encoder"):
        fit.save(tmp_path / "other", reference_encoder=True)


def test_vectors_are_given_alone_and_texts_with_an_encoder(npy, tmp_path, vector_model, sentences):
    (tmp_path / "c.txt").write_text("a text\n")
    alone = "fastflow: a .npy file of vectors is given alone, without other files or texts beside it\n"
    cases = {("v.npy", "v.npy"): alone, ("v.npy", "c.txt"): alone, ("c.txt",): "Missing option '--encoder'"}
    said = train(npy, "-o", tmp_path / "m", "--dry-run", "--method", "whiten:8")
    assert "400 of 32 numbers, no encoder; method: whiten:8" in said
    assert not (tmp_path / "m").exists()
    for sources, message in cases.items():
        assert message in train(*(tmp_path / name for name in sources), "-o", tmp_path / "m", code=2), sources
    for use in (lambda: fastflow.fit(sentences, vector_model), lambda: load_model(vector_model)):
        with pytest.raises(UsageError, match="calibrates vectors and has no encoder"):
            use()


def test_vectors_that_are_spread_out_already_are_a_warning():
    x = np.random.default_rng(0).normal(size=(500, 40)).astype(np.float32)
    with pytest.warns(UserWarning, match="compare cosines of pairs of your own before and after it"):
        fit = fastflow.fit(x)
    assert not any("--token-weights" in warning for warning in fit.report["warnings"])
