"""What reduced precision costs a model: measured on its own texts, and not at all if no kernel runs it."""

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.kernels.encoder.cpu import DTYPES
from fastflow.model.artifact import load_model
from fastflow.model.tokens import Tokenizer
from fastflow.train.ship import precision
from fastflow.train.ship.precision import REDUCED, TEXTS, measure_precision


def test_the_least_cosine_is_that_of_the_vectors(model, sentences):
    found = measure_precision(load_model(model), sentences).least_cosines
    assert set(found) == set(REDUCED) == set(DTYPES) - {"float32"}
    exact = Runtime(model, backend="cpu", dtype="float32").encode(sentences, normalize_embeddings=True)
    for dtype in REDUCED:
        near = Runtime(model, backend="cpu", dtype=dtype).encode(sentences, normalize_embeddings=True)
        assert found[dtype] == pytest.approx(float((near * exact).sum(axis=1).min()), abs=2e-6)
        assert 0.9 < found[dtype] < 1
    assert found["int8"] < found["bfloat16"]


def test_texts_are_taken_from_the_whole_corpus(model, monkeypatch):
    asked = []
    real = Tokenizer.prompted
    monkeypatch.setattr(
        Tokenizer, "prompted", lambda self, texts, *rest: asked.append(list(texts)) or real(self, texts, *rest)
    )
    measure_precision(load_model(model), [f"dog {i}" for i in range(10 * TEXTS + 7)])
    assert len(asked[0]) == TEXTS
    numbers = np.array([int(text.split()[1]) for text in asked[0]])
    assert numbers[0] == 0
    assert numbers[-1] > 9 * TEXTS


def test_nothing_is_known_where_the_kernels_do_not_run_the_encoder(model, monkeypatch):
    monkeypatch.setattr(precision, "who_runs", lambda encoder, device: "torch")
    assert measure_precision(load_model(model), ["a dog"]) == ({}, None)
