"""Tables for model2vec, opened by it."""

import json

import numpy as np
import pytest

from fastflow import FastflowError, Runtime
from fastflow.exports.export import export
from fastflow.model.locate import DEFAULT

from support.builders import make_model
from support.exports import MODELS, TEXTS, apart
from support.static_dirs import model2vec_dir

model2vec = pytest.importorskip("model2vec")
pytestmark = pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into")
CLOSE = 2e-6
TABLES = ("table", "table-unit", "table-half", "table-int8", "table-clusters", "table-short", "table-endless")


def encoded(path):
    library = model2vec.StaticModel.from_pretrained(path)
    if library.embedding.dtype == np.float16:  # it rounds results to float16
        library.embedding = library.embedding.astype(np.float32)
    return np.asarray(library.encode(TEXTS), np.float32)


@pytest.mark.parametrize("kind", TABLES)
def test_the_same_vectors_in_the_dtype_of_the_table(kind, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, "model2vec", tmp_path / "out")
    assert apart(model, encoded(made.path)) <= CLOSE
    stored = {name: model2vec.StaticModel.from_pretrained(path).embedding for name, path in (
        ("given", model), ("made", made.path),
    )}  # fmt: skip
    assert stored["given"].dtype == stored["made"].dtype
    assert np.array_equal(stored["given"], stored["made"])
    assert np.array_equal(Runtime(made.path).encode(TEXTS), Runtime(model).encode(TEXTS))


@pytest.mark.slow
def test_the_table_in_the_package(tmp_path):
    made = export("static", "model2vec", tmp_path / "out")
    assert apart("static", encoded(made.path)) <= CLOSE
    assert made.size < 10e6


@pytest.mark.parametrize(("dim", "normalize"), [(None, True), (5, False), (5, True)])
def test_fewer_numbers_and_length_one(dim, normalize, tmp_path):
    model = model2vec_dir(tmp_path / "model")
    made = export(model, "model2vec", tmp_path / "out", dim=dim, normalize=normalize)
    assert apart(model, encoded(made.path), truncate_dim=dim, normalize_embeddings=normalize) <= CLOSE


def test_a_saved_table_with_a_limit_of_its_own(tmp_path, sentences):
    source = model2vec_dir(tmp_path / "table", width=32)
    model = make_model(tmp_path / "model", source, sentences, "none", pooling="words", max_length=20)
    made = export(model, "model2vec", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_length"] == 20
    assert apart(model, encoded(made.path)) <= CLOSE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("raw-bert", "it is no table of token vectors; fastflow distill makes one of it"),
        ("table-flow", r"its calibration, flow\(.*, comes after the mean"),
        ("static-embedding", "its mean counts unknown tokens"),
    ],
)
def test_more_than_a_table_is_refused(kind, reason, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    with pytest.raises(FastflowError, match=f"cannot be exported to model2vec: {reason}"):
        export(model, "model2vec", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_token_weights_are_refused(tmp_path, sentences):
    source = model2vec_dir(tmp_path / "table", width=32)
    model = make_model(tmp_path / "model", source, sentences, "none", pooling="words", max_length=64, weighted=True)
    with pytest.raises(FastflowError, match="its token weights divide by their sum"):
        export(model, "model2vec", tmp_path / "out")
    with pytest.raises(FastflowError, match="it is no table of token vectors"):
        export(DEFAULT, "model2vec", tmp_path / "out")
