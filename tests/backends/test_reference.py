"""The reference backend: transformers' numbers in float64, calibrated by the equations, and the order of shortening."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from fastflow.backends.reference import ReferenceBackend
from fastflow.model.artifact import load_model
from fastflow.model.tokens import Tokenizer
from fastflow.stages.calibration import apply

from support.builders import make_model


@pytest.fixture
def tokens(bert, sentences):
    return Tokenizer(bert, 64)(sentences[:5])


def opened(model, dtype="float64", threads=None):
    return ReferenceBackend(load_model(model), dtype, "cpu", threads)


def test_hidden_states_are_those_of_transformers_in_float64(bert, model, tokens):
    backend = opened(model)
    states = backend.hidden_states(tokens)
    encoder = AutoModel.from_pretrained(bert).eval().double()
    for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True):
        with torch.inference_mode():
            ids = torch.from_numpy(tokens.ids[start:end].astype(np.int64))[None]
            want = encoder(ids, output_hidden_states=True).hidden_states
        for layer, found in states.items():
            assert np.abs(found[start:end] - want[layer][0].numpy()).max() <= 1e-9
    mean = [
        [s[a:b].mean(axis=0) for s in states.values()]
        for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)
    ]
    assert np.abs(backend.pool(tokens) - np.mean(mean, axis=1)).max() <= 1e-12


def test_calibrated_cut_and_then_normalised(model, tokens):
    backend = opened(model)
    pooled = backend.pool(tokens)
    whole = apply([stage.astype(np.float64) for stage in load_model(model).calibration], pooled)
    assert np.array_equal(backend.calibrate(pooled), whole)
    short = backend.calibrate(pooled, normalize=True, truncate=5)
    assert np.abs(short - whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)).max() <= 1e-15


def test_leading_directions_are_kept_where_the_model_orders_them(tmp_path, bert, sentences, tokens):
    made = make_model(tmp_path / "m", bert, sentences[:64], ordered=True)
    backend, order = opened(made), load_model(made).truncation
    whole = backend.calibrate(pooled := backend.pool(tokens))
    assert np.abs(backend.calibrate(pooled, truncate=4) - whole @ order.basis[:, :4]).max() <= 1e-12


def test_threads_are_not_obeyed_and_that_is_said(bert):
    assert opened(bert).notes == []
    assert opened(bert, "float32", 3).notes == ["threads: NumPy's BLAS decides"]


def test_overflow_is_left_to_be_found_in_the_rows(model):
    with np.errstate(all="raise"):
        z = opened(model, "float32").calibrate(np.full((2, 32), 3e38, np.float32))
    assert not np.isfinite(z).all()
