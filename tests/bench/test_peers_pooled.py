"""The reference of the encoder suites pools as the model does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastflow import Runtime
from fastflow.bench.measure.compare import least_cosine
from fastflow.bench.peers.pooled import Pooled, reference
from fastflow.bench.suites import texts
from fastflow.model.artifact import load_model
from fastflow.model.tokens import Tokenizer

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
