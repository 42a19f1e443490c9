"""TEI's routes over a socket, against the Runtime itself."""

from __future__ import annotations

import numpy as np
import pytest

TEXTS = ["The cat sat on the mat.", "A long day in the mountains."]


@pytest.mark.parametrize("normalize", [None, True, False])
def test_embed_gives_the_runtimes_vectors(server, runtime, normalize):
    answer = server.post("/embed", {"inputs": TEXTS} | ({} if normalize is None else {"normalize": normalize}))
    assert answer.status == 200
    expected = runtime.encode(TEXTS, normalize_embeddings=normalize is not False)
    assert np.array_equal(np.array(answer.json, np.float32), expected)


def test_embed_of_one_string_is_a_list_of_one(server, runtime):
    answer = server.post("/embed", {"inputs": TEXTS[0], "dimensions": 5})
    expected = runtime.encode(TEXTS[:1], normalize_embeddings=True, truncate_dim=5)
    assert np.array_equal(np.array(answer.json, np.float32), expected)
    assert answer.headers["x-compute-tokens"] == str(int(runtime.tokenize(TEXTS[:1]).offsets[-1]))


def test_embed_gives_bytes_where_they_are_accepted(server, runtime):
    answer = server.post("/embed", {"inputs": TEXTS}, accept="application/octet-stream")
    expected = runtime.encode(TEXTS, normalize_embeddings=True)
    assert np.array_equal(np.frombuffer(answer.body, "<f4").reshape(2, -1), expected)


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"inputs": []}, 400, "Empty"),
        ({"inputs": ["a"] * 2049}, 422, "Validation"),
        ({"inputs": 1}, 422, "Validation"),
        ({"inputs": "a", "dimensions": 1000}, 422, "Validation"),
        ({"inputs": "a", "truncation_direction": "left"}, 422, "Validation"),
        ({"inputs": "a", "prompt_name": "query"}, 422, "Validation"),
        ({"inputs": "a", "other": 1}, 422, "Validation"),
        ({"inputs": "word " * 500, "truncate": False}, 422, "Validation"),
        ({"inputs": "a\ud800"}, 422, "Tokenizer"),
    ],
)
def test_a_wrong_request_has_teis_status_and_words(server, body, status, kind):
    answer = server.post("/embed", body)
    assert (answer.status, answer.json["error_type"]) == (status, kind)
    assert set(answer.json) == {"error", "error_type"}


def test_similarity_is_the_runtimes(server, runtime):
    body = {"inputs": {"source_sentence": "a cat", "sentences": TEXTS}, "parameters": {"truncate": True}}
    answer = server.post("/similarity", body)
    expected = runtime.similarity(["a cat"], TEXTS)[0]
    assert np.allclose(answer.json, expected, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": {"sentences": TEXTS}},
        {"inputs": {"source_sentence": "a", "sentences": "b", "x": 1}},
        {"inputs": "a"},
        {"inputs": {"source_sentence": "a", "sentences": "b"}},
        {"inputs": {"source_sentence": "a", "sentences": TEXTS}, "parameters": []},
        {"inputs": {"source_sentence": "a", "sentences": TEXTS}, "parameters": {"normalize": True}},
    ],
)
def test_a_wrong_similarity_is_422(server, body):
    assert server.post("/similarity", body).status == 422


def test_tokenize_gives_ids_and_places(server, runtime):
    text = "Zürich sees unbelievable cats"
    pieces = server.post("/tokenize", {"inputs": text}).json[0]
    assert [piece["id"] for piece in pieces] == runtime.tokenize([text]).ids.tolist()
    inner = pieces[1:-1]
    assert [piece["special"] for piece in pieces] == [True, *[False] * len(inner), True]
    bare = server.post("/tokenize", {"inputs": [text], "add_special_tokens": False}).json[0]
    assert bare == inner
    assert text[inner[0]["start"] : inner[0]["stop"]].lower().startswith("z")


def test_tokenize_does_not_cut(server):
    assert len(server.post("/tokenize", {"inputs": "word " * 500}).json[0]) == 502


def test_tokenize_is_bounded(server):
    assert server.post("/tokenize", {"inputs": "a" * 500_001}).status == 422


def test_info_names_the_model_and_every_limit(server, runtime):
    info = server.get("/info").json
    assert (info["model_id"], info["fingerprint"]) == ("default", runtime.fingerprint)
    assert (info["max_input_length"], info["dim"], info["max_client_batch_size"]) == (128, 256, 2048)
    assert info["auto_truncate"] is True
    assert info["max_batch_tokens"] > 0


def test_health_and_metrics(server):
    assert server.get("/health").json == {"status": "ok"}
    server.post("/embed", {"inputs": "a"})
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert b'te_request_count{method="single"}' in answer.body


def test_the_description_is_served(server):
    assert server.get("/openapi.json").json["openapi"].startswith("3.1")


def test_similarity_of_a_list_says_what_it_takes(server):
    answer = server.post("/similarity", {"inputs": ["a", "b"]})
    assert (answer.status, answer.json["error"]) == (422, "inputs must be an object with source_sentence and sentences")
