"""/compare: similarities of pairs before and after calibration, each where it belongs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fastflow

from support.servers import serving

PAIRS = [
    ["A man is playing a guitar.", "Someone plays an instrument."],
    ["A man is playing a guitar.", "The committee will vote on the budget."],
    ["naïve café", "<script>alert(1)</script>"],
]


def cosines(z) -> list[float]:
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    return [float(a @ b) for a, b in zip(z[::2], z[1::2], strict=True)]


def test_raw_is_of_every_token_alike_and_calibrated_of_embeddings(server, runtime):
    texts = [text for pair in PAIRS for text in pair]
    found = server.post("/compare", {"pairs": PAIRS}).json
    raw, calibrated = ([pair[side] for pair in found["pairs"]] for side in ("raw", "calibrated"))
    model = runtime.session.model
    plain = fastflow.Runtime(replace(model, pooling=replace(model.pooling, weights=None)), "cpu")
    np.testing.assert_allclose(raw, cosines(plain.pool(texts)), atol=1e-5)
    np.testing.assert_allclose(calibrated, cosines(runtime.encode(texts)), atol=1e-5)
    assert min(abs(a - b) for a, b in zip(raw, calibrated, strict=True)) > 0.01  # the two are not one
    assert found["similarity"] == "cosine"
    assert found["calibration"] == runtime.info()["calibration"]
    assert found["raw_pooling"] == "masked mean of word embeddings without positions"


@pytest.mark.slow
def test_a_model_without_calibration_says_so(bert):
    with serving(bert, rate=50_000.0) as server:
        found = server.post("/compare", {"pairs": [["a b", "c d"]]}).json
        assert found["calibration"] == server.get("/info").json["calibration"] == "none"
        assert found["pairs"][0]["raw"] == found["pairs"][0]["calibrated"]
        assert found["raw_pooling"] == fastflow.Runtime(bert, "cpu").info()["pooling"]


def test_the_runtime_pools_tokens_as_it_pools_texts():
    runtime = fastflow.Runtime(None, "cpu")
    texts = ["one text", "another, which is longer"]
    assert np.array_equal(runtime.session.pool_tokens(runtime.session.tokenize(texts)), runtime.pool(texts))
