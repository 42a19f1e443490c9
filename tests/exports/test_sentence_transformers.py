"""Directories for Sentence Transformers, opened by it: the vectors are those of the model."""

import json

import numpy as np
import pytest

from fastflow import FastflowError, Runtime
from fastflow.exports import sentence_transformers
from fastflow.exports.export import export

from support.exports import MODELS, REFUSED, TEXTS, apart
from support.sentence_dirs import PROMPTED
from support.static_dirs import TEXTS as STATIC_TEXTS
from support.static_dirs import model2vec_dir

pytest.importorskip("sentence_transformers", exc_type=ImportError)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into", "ignore:.*prompt"),
]
CLOSE = 5e-6


def opened(path):
    """As a user opens it: no trust flag, no dtype."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(path), device="cpu", local_files_only=True)


@pytest.mark.parametrize("kind", [name for name in MODELS if name not in REFUSED])
def test_the_same_vectors(kind, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, "st", tmp_path / "st")
    found = opened(made.path).encode(TEXTS, show_progress_bar=False)
    assert found.shape == (len(TEXTS), made.dim)
    assert apart(model, found) <= CLOSE


@pytest.mark.parametrize("kind", REFUSED)
def test_a_part_that_no_module_computes_is_named(kind, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    with pytest.raises(FastflowError, match=REFUSED[kind]):
        export(model, "st", tmp_path / "st")
    assert not list(tmp_path.glob("st*"))


@pytest.mark.parametrize("kind", ["flow", "whiten-narrow", "table-unit", "modules"])
@pytest.mark.parametrize(("dim", "normalize"), [(None, True), (5, False), (5, True)])
def test_fewer_numbers_and_length_one(kind, dim, normalize, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, "st", tmp_path / "st", dim=dim, normalize=normalize)
    found = opened(made.path).encode(TEXTS, show_progress_bar=False)
    assert apart(model, found, normalize_embeddings=normalize, truncate_dim=dim) <= CLOSE


@pytest.mark.parametrize("limit", [8, None])
def test_a_table_of_any_mean_is_a_static_embedding(limit, tmp_path):
    """Unknown tokens count for the limit, and not in the mean; a text may have no others."""
    model = model2vec_dir(tmp_path / "model", max_length=limit)
    made = export(model, "st", tmp_path / "st")
    found = opened(made.path).encode(STATIC_TEXTS, show_progress_bar=False)
    want = Runtime(model).encode(STATIC_TEXTS)
    assert np.abs(found - want).max() <= CLOSE
    assert not found[~want.any(axis=1)].any()
    types = [entry["type"].rpartition(".")[2] for entry in json.loads((tmp_path / "st" / "modules.json").read_text())]
    assert types == ["StaticEmbedding", "Normalize", "Dense"]


def test_weights_that_a_static_embedding_would_round_away_are_refused(tmp_path, encoders, sentences, monkeypatch):
    monkeypatch.setattr(sentence_transformers, "HEAVIER", 1.5)
    model = MODELS["table-weights"](tmp_path / "model", encoders, sentences)
    with pytest.raises(FastflowError, match=r"the largest is over 1\.5 times the least"):
        export(model, "st", tmp_path / "st")
    assert not (tmp_path / "st").exists()


@pytest.mark.parametrize("name", ["default", "static"])
def test_the_models_in_the_package(name, tmp_path):
    made = export(name, "st", tmp_path / "st")
    assert (made.dim, made.format) == (256, "st")
    assert apart(name, opened(made.path).encode(TEXTS, show_progress_bar=False)) <= CLOSE


def test_half_precision_is_computed_in_float32(tmp_path):
    """The package's weights are float16; Sentence Transformers would compute in that."""
    made = export(None, "st", tmp_path / "st")
    parameters = [p.dtype for p in opened(made.path).parameters()]
    assert {str(dtype) for dtype in parameters} == {"torch.float32"}


def test_prompts_stay(tmp_path, encoders, sentences):
    model = MODELS["modules"](tmp_path / "model", encoders, sentences)
    theirs = opened(export(model, "st", tmp_path / "st").path)
    assert theirs.prompts["query"] == PROMPTED["prompts"]["query"]
    assert theirs.default_prompt_name == "query"
    want = Runtime(model, dtype="float32").encode(TEXTS, prompt_name="query")
    assert np.abs(theirs.encode(TEXTS, prompt_name="query") - want).max() <= CLOSE


def test_a_loader_of_plain_encoders_finds_none(tmp_path, model):
    import transformers

    made = export(model, "st", tmp_path / "st")
    assert not (tmp_path / "st" / "config.json").exists()
    with pytest.raises((OSError, ValueError)):
        transformers.AutoModel.from_pretrained(made.path)


def test_a_loader_of_tables_alone_finds_none(tmp_path):
    """It would leave out the modules after the table, and unknown tokens."""
    model2vec = pytest.importorskip("model2vec")
    made = export("static", "st", tmp_path / "st", dim=8)
    with pytest.raises(ValueError, match="Could not find expected model files"):
        model2vec.StaticModel.from_pretrained(made.path)


def test_only_their_own_modules(tmp_path, weighted_model):
    export(weighted_model, "st", tmp_path / "st")
    types = [entry["type"] for entry in json.loads((tmp_path / "st" / "modules.json").read_text())]
    assert all(each.startswith("sentence_transformers.models.") for each in types)
    assert [each.rpartition(".")[2] for each in types][:4] == [
        "Transformer", "WeightedLayerPooling", "WordWeights", "Pooling",
    ]  # fmt: skip
    assert opened(tmp_path / "st")[0].unpad_inputs is False
