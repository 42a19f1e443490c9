"""/compare: similarities of pairs before and after calibration, each where it belongs."""

from __future__ import annotations

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


def test_raw_is_of_pooled_vectors_and_calibrated_of_embeddings(server, runtime):
    texts = [text for pair in PAIRS for text in pair]
    found = server.post("/compare", {"pairs": PAIRS}).json
    raw, calibrated = ([pair[side] for pair in found["pairs"]] for side in ("raw", "calibrated"))
    np.testing.assert_allclose(raw, cosines(runtime.pool(texts)), atol=1e-5)
    np.testing.assert_allclose(calibrated, cosines(runtime.encode(texts)), atol=1e-5)
    assert min(abs(a - b) for a, b in zip(raw, calibrated, strict=True)) > 0.01  # the two are not one
    assert found["similarity"] == "cosine"
    assert found["calibration"] == runtime.info()["calibration"]


def test_calibrated_is_what_similarity_gives(server):
    one = server.post("/compare", {"pairs": PAIRS[:1]}).json["pairs"][0]["calibrated"]
    body = {"inputs": {"source_sentence": PAIRS[0][0], "sentences": [PAIRS[0][1]]}}
    assert one == pytest.approx(server.post("/similarity", body).json[0], abs=1e-5)


def test_pooled_and_embedded_texts_of_one_batch_do_not_mix(server, runtime):
    from support.servers import in_parallel

    texts = [text for pair in PAIRS for text in pair]
    calls = [lambda: server.post("/compare", {"pairs": PAIRS}), lambda: server.post("/embed", {"inputs": texts})] * 6
    answers = in_parallel(calls)
    for answer in answers[::2]:
        assert answer.json == answers[0].json
    for answer in answers[1::2]:
        np.testing.assert_allclose(answer.json, runtime.encode(texts, normalize_embeddings=True), atol=1e-6)


@pytest.mark.slow
def test_a_model_without_calibration_says_so(bert):
    with serving(bert, rate=50_000.0) as server:
        found = server.post("/compare", {"pairs": [["a b", "c d"]]}).json
        assert found["calibration"] == server.get("/info").json["calibration"] == "none"
        assert found["pairs"][0]["raw"] == found["pairs"][0]["calibrated"]


def test_texts_that_are_cut_are_counted(server):
    assert server.post("/compare", {"pairs": [["word " * 500, "a"]]}).json["truncated_texts"] == 1
    assert server.post("/compare", {"pairs": [["word " * 500, "a"]], "truncate": False}).status == 422


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "pairs is missing"),
        ({"pairs": "a"}, "a list of pairs"),
        ({"pairs": []}, "holds no pair"),
        ({"pairs": [["a"]]}, "pairs[0] must be a list of two strings"),
        ({"pairs": [["a", "b"], ["a", 1]]}, "pairs[1] must be a list of two strings"),
        ({"pairs": [["a", "b"]], "normalize": True}, "normalize is no field"),
        ({"pairs": [["a", "b"]], "prompt_name": "nobody"}, "nobody"),
        ({"pairs": [["a", "b"]] * 1025}, "holds 2050 texts, and a request may hold 2048"),
    ],
)
def test_what_it_refuses(server, body, says):
    answer = server.post("/compare", body)
    assert answer.status in (400, 422)
    assert says in answer.json["error"]


@pytest.mark.slow
def test_it_waits_in_the_queue_like_others():
    """A server that computes nothing in time refuses /compare as it refuses /embed."""
    with serving(rate=1.0, timeout=5.0) as server:
        for path, body in (("/compare", {"pairs": [["word " * 40] * 2]}), ("/embed", {"inputs": ["word " * 40] * 2})):
            assert "send fewer at once" in server.post(path, body).json["error"], path


@pytest.mark.slow
def test_a_key_is_asked_for():
    with serving(keys=("k",), rate=50_000.0) as server:
        assert server.post("/compare", {"pairs": [["a", "b"]]}).status == 401
        assert server.post("/compare", {"pairs": [["a", "b"]]}, authorization="Bearer k").status == 200


def test_the_runtime_pools_tokens_as_it_pools_texts():
    runtime = fastflow.Runtime(None, "cpu")
    texts = ["one text", "another, which is longer"]
    assert np.array_equal(runtime.pool_tokens(runtime.tokenize_prompted(texts)), runtime.pool(texts))
