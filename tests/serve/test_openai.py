"""OpenAI's routes over a socket, against the Runtime itself."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from support.servers import serving

TEXTS = ["The cat sat on the mat.", "", "A long day in the mountains, and a short one by the sea."]


@pytest.fixture(scope="module")
def vectors(runtime):
    return runtime.encode(TEXTS, normalize_embeddings=True)


def numbers(answer, name="embedding"):
    return np.array([each[name] for each in answer.json["data"]], np.float32)


def test_floats_are_the_runtimes_to_the_bit(server, vectors):
    answer = server.post("/v1/embeddings", {"input": TEXTS, "model": "default"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert np.array_equal(numbers(answer), vectors)
    assert [each["index"] for each in answer.json["data"]] == [0, 1, 2]
    assert {answer.json["object"], *(each["object"] for each in answer.json["data"])} == {"list", "embedding"}


def test_one_string_gives_one_embedding(server, vectors):
    assert np.array_equal(numbers(server.post("/v1/embeddings", {"input": TEXTS[0]})), vectors[:1])


def test_base64_is_little_endian_float32(server, vectors):
    answer = server.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
    found = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer.json["data"]]
    assert np.array_equal(found, vectors)


@pytest.mark.parametrize(
    ("body", "headers"),
    [({"encoding_format": "bytes"}, {}), ({}, {"accept": "application/octet-stream"})],
    ids=["field", "Accept"],
)
def test_bytes_are_the_vectors_alone(server, vectors, body, headers):
    answer = server.post("/v1/embeddings", {"input": TEXTS} | body, **headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-embedding-shape"] == f"3,{vectors.shape[1]}"
    assert np.array_equal(np.frombuffer(answer.body, "<f4").reshape(vectors.shape), vectors)


def test_usage_counts_real_tokens(server, runtime):
    usage = server.post("/v1/embeddings", {"input": TEXTS}).json["usage"]
    tokens = int(runtime.tokenize(TEXTS).offsets[-1])
    assert usage == {"prompt_tokens": tokens, "total_tokens": tokens, "truncated_texts": 0}


def test_dimensions_are_cut_as_the_runtime_cuts_them(server, runtime):
    answer = server.post("/v1/embeddings", {"input": TEXTS, "dimensions": 7})
    assert np.array_equal(numbers(answer), runtime.encode(TEXTS, normalize_embeddings=True, truncate_dim=7))


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"input": "a", "dimensions": 257}, "dimensions", "from 1 to 256"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "a", "dimensions": "8"}, "dimensions", "whole number"),
        ({"input": [1, 2, 3]}, "input", "check_embedding_ctx_length=False"),
        ({"input": [[1, 2], [3]]}, "input", "check_embedding_ctx_length=False"),
        ({"input": ["a", 1.5]}, "input[1]", "must be a string"),
        ({"input": []}, "input", "no text"),
        ({"input": ["a"] * 2049}, "input", "2048"),
        ({"input": {"text": "a"}}, "input", "a string or a list"),
        ({}, "input", "missing"),
        ({"input": "a", "colour": "red"}, "colour", "no field"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": "a", "user": 3}, "user", "string"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name", "the model has none"),
        ({"input": "a\ud800"}, None, "surrogate"),
        ([], None, "JSON object"),
    ],
)
def test_a_wrong_request_is_400_in_openais_words(server, body, param, says):
    answer = server.post("/v1/embeddings", body)
    assert answer.status == 400
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]


def test_another_model_is_404(server):
    answer = server.post("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"})
    assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
    assert "default" in answer.json["error"]["message"]


def test_null_is_as_good_as_absent_and_the_user_is_ignored(server, vectors):
    body = {"input": TEXTS[0], "dimensions": None, "encoding_format": None, "user": "u"}
    assert np.array_equal(numbers(server.post("/v1/embeddings", body)), vectors[:1])


def test_vectors_as_they_are(server, runtime):
    answer = server.post("/v1/embeddings", {"input": TEXTS, "normalize": False})
    assert np.array_equal(numbers(answer), runtime.encode(TEXTS))


@pytest.mark.slow
def test_the_model_has_the_names_it_was_given():
    with serving(names=("text-embedding-3-small", "b")) as server:
        assert [each["id"] for each in server.get("/v1/models").json["data"]] == [
            "text-embedding-3-small",
            "b",
            "default",
        ]
        answer = server.post("/v1/embeddings", {"input": "a", "model": "b"})
        assert (answer.status, answer.json["model"]) == (200, "text-embedding-3-small")


@pytest.mark.filterwarnings("ignore:texts longer than")
def test_a_text_that_is_too_long_is_cut_and_said_or_refused(server, runtime):
    long, before = "word " * 500, server.service.metrics.value("fastflow_truncated_texts")
    answer = server.post("/v1/embeddings", {"input": ["short", long]})
    assert answer.json["usage"]["truncated_texts"] == 1
    assert answer.headers["x-truncated-texts"] == "1"
    assert server.service.metrics.value("fastflow_truncated_texts") == before + 1
    assert np.array_equal(numbers(answer)[1], runtime.encode(long, normalize_embeddings=True))
    refused = server.post("/v1/embeddings", {"input": ["short", long], "truncate": False})
    assert refused.status == 400
    assert "text 1 has more than 128 tokens" in refused.json["error"]["message"]
