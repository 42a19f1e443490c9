"""Calibration after all modules of a directory of Sentence Transformers: --pooling model."""

import json
import shutil

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model, verify
from fastflow.stages.calibration import apply
from fastflow.train.data.embeddings import open_encoder

from support.sentence_dirs import NORMALIZE, dense, expected, make_directory, pooling

PROMPTS = {"prompts": {"query": "the old "}, "default_prompt_name": "query"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, bert):
    modules = [pooling("cls", "mean", include_prompt=False), dense(16), NORMALIZE]
    return make_directory(tmp_path_factory.mktemp("st") / "m", bert, modules, folder="0_Transformer", **PROMPTS)


@pytest.fixture(scope="module")
def model(directory, sentences, tmp_path_factory):
    out = tmp_path_factory.mktemp("saved") / "model"
    fastflow.fit(sentences, directory, "whiten:8", pooling="model", stop="budget").save(out)
    return out


def test_the_calibration_comes_behind_every_module(model, directory, sentences):
    opened = load_model(model)
    pooled = expected(directory, sentences[:20], "the old ")
    want = apply([stage.astype(np.float64) for stage in opened.calibration], pooled)
    for backend in ("cpu", "reference", "torch"):
        rt = fastflow.Runtime(model, backend=backend, dtype="float32")
        found = rt.encode(sentences[:20])
        assert found.shape == (20, 8)
        assert np.abs(found - want).max() <= 1e-4 * np.abs(want).max()  # whitening amplifies small deviations
        np.testing.assert_allclose(rt.pool(sentences[:20]), pooled, atol=2e-6)
    manifest = json.loads((model / "fastflow.json").read_text())
    assert (manifest["format_version"], manifest["pooling"]) == (3, {"mode": "modules", "calibration": "last"})
    assert opened.manifest["least_cosine"].keys() == {"bfloat16", "int8"}


@pytest.mark.slow
def test_it_was_fitted_on_texts_with_the_default_prompt(model, directory, sentences):
    mean = load_model(model).calibration[0].params["mean"]
    distinct = list(dict.fromkeys(sentences))
    np.testing.assert_allclose(mean, expected(directory, distinct, "the old ").mean(axis=0), atol=1e-5)


@pytest.mark.slow
def test_the_model_is_whole(model, directory, sentences, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy")
    assert verify(copy)[0].endswith("files match their sha256")
    assert fastflow.Runtime(copy).info()["modules"] == fastflow.Runtime(directory).info()["modules"]
    for name in ("modules.json", "2_Dense/model.safetensors", "0_Transformer/model.safetensors"):
        spoiled = shutil.copytree(model, tmp_path / name.replace("/", "-"))
        file = spoiled / "0_SentenceTransformer" / name
        file.write_bytes(file.read_bytes()[:-1] + b" ")
        with pytest.raises(FastflowError, match=r"is damaged|is not JSON"):
            fastflow.Runtime(spoiled)
    fastflow.fit(sentences, copy, "none", pooling="model").save(tmp_path / "again")  # auto may be bfloat16
    again, plain = (fastflow.Runtime(path, dtype="float32") for path in (tmp_path / "again", directory))
    np.testing.assert_array_equal(again.encode("a dog"), plain.encode("a dog"))


def refit(model, tmp_path, **changes):
    from fastflow.model.manifest import fingerprint

    copy = shutil.copytree(model, tmp_path / "m")
    manifest = json.loads((copy / "fastflow.json").read_text()) | changes
    manifest["fingerprint"] = fingerprint(manifest)
    (copy / "fastflow.json").write_text(json.dumps(manifest))
    return copy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": {"mode": "modules", "calibration": "first"}}, "field pooling: must be {'mode': 'modules'"),
        ({"max_length": 12}, "field max_length: must be 64, the limit of 0_SentenceTransformer"),
        ({"format_version": 1}, "0_Transformer is missing"),
        ({"dim": 9}, "field dim: says 9"),
    ],
)
def test_manifests_that_cannot_be(model, tmp_path, changes, message):
    with pytest.raises(FastflowError) as caught:
        load_model(refit(model, tmp_path, **changes))
    assert message in str(caught.value)


def test_a_file_that_no_hash_covers(model, tmp_path):
    manifest = json.loads((model / "fastflow.json").read_text())
    files = {name: h for name, h in manifest["files"].items() if "2_Dense/config" not in name}
    with pytest.raises(FastflowError, match=r"2_Dense/config\.json is not listed in fastflow\.json"):
        load_model(refit(model, tmp_path, files=files))


def test_choices_that_do_not_go_together(directory, bert, sentences, tmp_path):
    with pytest.raises(UsageError, match="--pooling model is for a directory of Sentence Transformers, and"):
        open_encoder(str(bert), "model", None)
    with pytest.raises(UsageError, match="--pooling model keeps the limit of 64 tokens: leave out --max-length"):
        open_encoder(str(directory), "model", 32)
    with pytest.raises(UsageError, match=r"^pooling model pools as the directory says: leave out token_weights$"):
        fastflow.fit(sentences, directory, "none", pooling="model", token_weights="sif")
    cut = make_directory(tmp_path / "cut", bert, [pooling("mean")], truncate_dim=4)
    with pytest.raises(UsageError, match="keeps 4 dimensions of its own"):
        open_encoder(str(cut), "model", None)


@pytest.mark.slow
def test_embed_fit_keeps_the_modules(directory, tmp_path, corpus):
    from click.testing import CliRunner

    from fastflow.cli import main

    out, kept = tmp_path / "x.npy", tmp_path / "kept"
    words = ["embed", str(corpus), "-m", str(directory), "--fit", "--save-model", str(kept), "-o", str(out)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.stderr
    assert load_model(kept).modules.names() == load_model(directory).modules.names()
    assert np.load(out).shape[1] == fastflow.Runtime(kept).dim
