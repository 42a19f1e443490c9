"""Tokens made and embedded apart give the bits of ``encode``."""

from __future__ import annotations

import numpy as np
import pytest

import fastflow
from fastflow.errors import UsageError


@pytest.fixture(scope="module")
def rt(model):
    return fastflow.Runtime(model, "cpu")


@pytest.fixture(scope="module")
def flow(rt):
    return rt._opened


@pytest.mark.parametrize(("normalize", "dim"), [(False, None), (True, None), (True, 7), (False, 32)])
def test_embed_tokens_is_encode(rt, flow, sentences, normalize, dim):
    found = flow.embed_tokens(flow.prompted(sentences), normalize, dim)
    assert np.array_equal(found, rt.encode(sentences, normalize_embeddings=normalize, truncate_dim=dim))


def test_the_prompt_goes_before_every_text(rt, flow, sentences):
    found = flow.embed_tokens(flow.prompted(sentences, "the dog "))
    assert np.array_equal(found, rt.encode(sentences, prompt="the dog "))


@pytest.mark.parametrize("dim", [0, 33])
def test_a_width_that_the_model_lacks_is_refused(flow, dim):
    assert flow.width == 32
    with pytest.raises(UsageError, match="1 to 32"):
        flow.embed_tokens(flow.prompted(["the dog"]), truncate_dim=dim)


def test_the_tokens_of_a_batch(flow):
    assert flow.backend.batch_tokens >= 1024
