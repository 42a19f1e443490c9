"""Static encoders in rules and commands of their own; test_same_vectors.py has their vectors at every door."""

import json

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import UsageError

from support.builders import make_model
from support.commands import run
from support.static_dirs import model2vec_dir, static_embedding_dir

TEXTS = ["The old dog sees the bird.", "", "☃", "two trees near the river", "the cat"]


@pytest.fixture(scope="module", params=["model2vec", "StaticEmbedding", "calibrated"])
def static(request, tmp_path_factory, sentences):
    path = tmp_path_factory.mktemp("static")
    own = model2vec_dir(path / "own", width=32, dtype=np.int8, weights=np.float32, normalize=True)
    if request.param == "calibrated":
        return make_model(path / "model", own, sentences, pooling="words", max_length=None, weighted=True, ordered=True)
    if request.param == "model2vec":
        return own
    return static_embedding_dir(path / "bag", [("Normalize", {})], width=32, dtype=np.float16)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return tmp_path


def assert_done(result):
    assert result.exit_code == 0, result.stderr
    return result


def test_an_empty_text_is_zero_before_the_calibration(static):
    runtime = Runtime(static)
    assert not runtime.pool(["", " "]).any()
    if not runtime.info()["calibration"].startswith("flow"):
        with pytest.raises(UsageError, match="flow"):
            runtime.log_prob(TEXTS)
    else:
        assert np.isfinite(runtime.log_prob(TEXTS)).all()


def test_search(static, files):
    database = files / "texts.db"
    assert_done(run("embed", files / "in.txt", "-m", static, "-o", database, "--quiet"))
    found = assert_done(run("search", database, "the old dog", "-m", static, "-k", "1", "--json"))
    assert json.loads(found.stdout)["hits"][0]["text"] == TEXTS[0]


def test_info_and_verify(static):
    info = json.loads(assert_done(run("info", static)).stdout)
    assert (info["backend"], info["dtype"], info["takes"]) == ("cpu", "float32", "texts")
    assert "fingerprint" in assert_done(run("verify", static)).stdout
