"""The reference of the encoder suites pools as the model does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastflow import Runtime
from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.peers import pooled as peers_pooled
from fastflow.bench.peers.pooled import Pooled, reference
from fastflow.bench.suites import texts
from fastflow.bench.suites.workbench import Workbench
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.tokens import Tokenizer

from support.builders import make_model
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling

pytestmark = pytest.mark.usefixtures("as_in_a_run")


def test_the_reference_weighs_as_the_model_does(weighted_subject, sentences):
    assert np.array_equal(weighted_subject.weights, load_model(weighted_subject.model).pooling.weights)
    assert len({weighted_subject, weighted_subject}) == 1
    tokenize = Tokenizer(weighted_subject.encoder, weighted_subject.max_length)
    found = texts.padded(reference(weighted_subject), tokenize)(sentences[:40])
    want = Runtime(weighted_subject.model, backend="reference").pool(sentences[:40])
    assert least_cosine("fastflow", "float32", found, want) >= 1 - 1e-6
    assert np.abs(found - want).max() <= 1e-5


def test_named_layers_are_averaged_plainly(weighted_subject, sentences, bert):
    """As Sentence Transformers does with the plain encoder directory."""
    tokenize = Tokenizer(weighted_subject.encoder, weighted_subject.max_length)
    found = texts.padded(reference(weighted_subject, (weighted_subject.depth,)), tokenize)(sentences[:40])
    assert np.abs(found - Runtime(bert, backend="reference").pool(sentences[:40])).max() <= 1e-5
    assert Pooled(weighted_subject, torch.float32, layers=(weighted_subject.depth,)).token_weights is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["words-first-last", "mean-of-layers:3*words,1,3"])
def test_the_reference_leaves_positions_out_as_the_model_does(tmp_path, bert, sentences, name):
    made = make_model(tmp_path / "m", bert, sentences[:64], "none", pooling=name, weighted=True)
    subject = Workbench(tmp_path, str(made)).named()
    found = texts.padded(reference(subject), texts.tokenizer_of(subject))(sentences[:9])
    assert np.abs(found - Runtime(made, backend="reference").pool(sentences[:9])).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cls", "pooler"])
def test_the_reference_takes_the_first_token_where_the_model_does(tmp_path, bert, sentences, mode):
    made = make_model(tmp_path / "m", bert, sentences[:64], "none", pooling=mode)
    subject = Workbench(tmp_path, str(made)).named()
    found = texts.padded(reference(subject), texts.tokenizer_of(subject))(sentences[:9])
    assert np.abs(found - Runtime(made, backend="reference").pool(sentences[:9])).max() <= 1e-5
    plainly = texts.padded(reference(subject, (3,)), texts.tokenizer_of(subject))(sentences[:9])
    assert np.abs(plainly - Runtime(bert, backend="reference").pool(sentences[:9])).max() <= 1e-5


def test_a_saved_directory_is_its_own_reference(tmp_path, bert, sentences):
    pytest.importorskip("sentence_transformers", reason="this peer is not installed", exc_type=ImportError)
    prompts = {"prompts": {"query": "a dog: "}, "default_prompt_name": "query"}
    made = make_directory(tmp_path / "st", bert, [pooling("cls", "mean"), dense(8), NORMALIZE], **prompts)
    subject = Workbench(tmp_path, str(made)).named()
    found = texts.padded(reference(subject), texts.tokenizer_of(subject))(sentences[:9])
    assert found.shape == (9, 8)
    assert np.abs(found - Runtime(made, backend="reference").encode(sentences[:9])).max() <= 1e-5


def test_a_saved_directory_needs_the_library_that_saved_it(tmp_path, bert, monkeypatch):
    made = make_directory(tmp_path / "st", bert, [pooling("mean")])
    monkeypatch.setattr(peers_pooled, "find_spec", lambda name: None)
    with pytest.raises(FastflowError, match=r"the bench of .*st, .* needs sentence_transformers, which is not inst"):
        reference(Workbench(tmp_path, str(made)).named())
