"""Exports to Sentence Transformers that fastflow opens: the same vectors."""

import numpy as np
import pytest

from fastflow import Runtime, UsageError
from fastflow.exports.export import export

from support.builders import make_model
from support.exports import MODELS, REFUSED, TEXTS, apart

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into")]
CLOSE = 2e-6
WITHOUT_LAYERS = ("embedding", "embedding-roberta", "words-bert", "words-distilbert", "words-electra", "words-mpnet")


@pytest.mark.parametrize("kind", [name for name in MODELS if name not in REFUSED])
def test_the_same_vectors(kind, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, "st", tmp_path / "st")
    with Runtime(made.path, dtype="float32", device="cpu") as runtime:
        assert apart(model, runtime.encode(TEXTS)) <= CLOSE


@pytest.mark.parametrize("name", ["default", "static"])
def test_the_models_in_the_package(name, tmp_path):
    made = export(name, "st", tmp_path / "st")
    with Runtime(made.path, dtype="float32", device="cpu") as runtime:
        assert apart(name, runtime.encode(TEXTS)) <= CLOSE


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("kind", WITHOUT_LAYERS)
def test_every_backend_runs_an_encoder_without_layers(kind, backend, tmp_path, encoders, sentences):
    model = MODELS[kind](tmp_path / "model", encoders, sentences)
    made = export(model, "st", tmp_path / "st")
    with Runtime(made.path, dtype="float32", device="cpu", backend=backend) as runtime:
        assert apart(model, runtime.encode(TEXTS)) <= CLOSE


def test_an_encoder_without_layers_is_calibrated_by_its_embedding_layer(tmp_path, encoders, sentences):
    model = MODELS["embedding"](tmp_path / "model", encoders, sentences)
    export(model, "st", tmp_path / "st")
    encoder = tmp_path / "st" / "0_Transformer"
    made = make_model(tmp_path / "fitted", encoder, sentences, "whiten", pooling="last")
    assert np.isfinite(Runtime(made).encode(TEXTS)).all()
    for pooling in ("first-last", "words-first-last", "embedding-first-last"):
        with pytest.raises(UsageError, match=f"pooling '{pooling}' asks for a layer outside 0 to 0"):
            make_model(tmp_path / pooling, encoder, sentences, "whiten", pooling=pooling)
    with pytest.raises(UsageError, match="'pooler' is of the last layer, and this encoder has none"):
        make_model(tmp_path / "pooler", encoder, sentences, "whiten", pooling="pooler")
