"""Static encoders through every door: Runtime, files, parts, search, the server and Ray give the same vectors."""

import json
import pickle
from multiprocessing import get_context

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import UsageError

from support.builders import make_model
from support.commands import run
from support.servers import serving
from support.static_dirs import model2vec_dir, static_embedding_dir

TEXTS = ["The old dog sees the bird.", "", "☃", "two trees near the river", "the cat"]


@pytest.fixture(scope="module", params=["model2vec", "StaticEmbedding", "calibrated"])
def static(request, tmp_path_factory, sentences):
    """A directory of either library, and a model that calibrates one. Do not change it."""
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


def test_runtime(static):
    runtime = Runtime(static)
    whole = runtime.encode(TEXTS)
    assert whole.shape == (5, 32)
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(runtime.encode(TEXTS, batch_size=1), whole)
    np.testing.assert_array_equal(np.concatenate([z for _, z in runtime.stream(iter(TEXTS), window=2)]), whole)
    np.testing.assert_array_equal(runtime.transform(runtime.pool(TEXTS)), whole)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(runtime)).encode(TEXTS), whole)
    assert runtime.encode(TEXTS, truncate_dim=8).shape == (5, 8)
    unit = runtime.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(unit[[0, 3, 4]], axis=1), 1, atol=1e-6)
    assert runtime.encode(TEXTS, precision="ubinary").shape == (5, 4)
    assert runtime.encode([]).shape == (0, 32)
    with get_context("fork").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(runtime.encode, (TEXTS,)), whole)


def test_an_empty_text_is_zero_before_the_calibration(static):
    runtime = Runtime(static)
    assert not runtime.pool(["", " "]).any()
    if not runtime.info()["calibration"].startswith("flow"):
        with pytest.raises(UsageError, match="flow"):
            runtime.log_prob(TEXTS)
    else:
        assert np.isfinite(runtime.log_prob(TEXTS)).all()


def test_files_and_parts(static, files):
    whole, want = files / "out.npy", Runtime(static).encode(TEXTS)
    assert_done(run("embed", files / "in.txt", "-m", static, "-o", whole, "--quiet"))
    np.testing.assert_array_equal(np.load(whole), want)
    for number in (1, 2):
        assert_done(run("embed", files / "in.txt", "-m", static, "-o", files / "parts", "--shard", f"{number}/2", "-q"))
    assert_done(run("merge", files / "parts", "-o", files / "merged.npy"))
    np.testing.assert_array_equal(np.load(files / "merged.npy"), want)
    shown = assert_done(run("embed", files / "in.txt", "-m", static, "--quiet")).stdout.splitlines()
    np.testing.assert_allclose([json.loads(line)["embedding"] for line in shown], want, atol=1e-6)


def test_search(static, files):
    database = files / "texts.db"
    assert_done(run("embed", files / "in.txt", "-m", static, "-o", database, "--quiet"))
    found = assert_done(run("search", database, "the old dog", "-m", static, "-k", "1", "--json"))
    assert json.loads(found.stdout)["hits"][0]["text"] == TEXTS[0]


def test_server(static):
    with serving(static) as server:
        answer = server.post("/v1/embeddings", {"input": TEXTS, "model": "default"})
    assert answer.status == 200
    found = [each["embedding"] for each in answer.json["data"]]
    np.testing.assert_allclose(found, Runtime(static).encode(TEXTS, normalize_embeddings=True), atol=1e-6)


def test_info_and_verify(static):
    info = json.loads(assert_done(run("info", static)).stdout)
    assert (info["backend"], info["dtype"], info["takes"]) == ("cpu", "float32", "texts")
    assert "fingerprint" in assert_done(run("verify", static)).stdout
