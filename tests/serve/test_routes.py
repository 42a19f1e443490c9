"""The route contract: what each route answers, and how it refuses each field that is wrong."""

from __future__ import annotations

import base64
import hashlib
import json

import numpy as np
import pytest

from fastflow.serve.model import TYPES
from fastflow.serve.requests import KINDS

from support.routes import ALIASES, COMPUTED, GETS, POSTS, STATUS, check_refusal, with_field
from support.servers import serving

TEXTS = ["The cat sat on the mat.", "", "A long day in the mountains, and a short one by the sea."]
OPENAI, EMBED, SIMILARITY, TOKENIZE, SEARCH, *_ = POSTS
LONG = "word " * 500


def test_every_route_is_in_the_table_and_in_the_description(librarian):
    table = {**dict.fromkeys(POSTS, "POST"), **dict.fromkeys(GETS, "GET"), "/": "GET POST"}
    table["/v1/models/{name:path}"] = "GET"
    served = {route.path: " ".join(sorted(route.methods - {"HEAD"})) for route in librarian.app.routes}
    paths = librarian.get("/openapi.json").json["paths"]
    paths["/v1/models/{name:path}"] = paths.pop("/v1/models/{name}")
    assert served == table == {path: " ".join(sorted(operations)).upper() for path, operations in paths.items()}


def test_each_name_of_the_model_has_a_route(librarian):
    for described in librarian.get("/v1/models").json["data"]:
        assert librarian.get(f"/v1/models/{described['id']}").json == described
    for name in ("gpt-4", "someone/other", ""):
        answer, says = librarian.get(f"/v1/models/{name}"), f"the model {name} does not exist here; this server has "
        check_refusal(librarian, "/v1/models/{name}", answer, "model", says, "model")


@pytest.mark.parametrize(("alias", "path"), ALIASES.items())
def test_an_alias_is_its_route(librarian, alias, path):
    for body in (POSTS[path], with_field(path, "dimensions", 5), with_field(path, "colour", "red"), []):
        one, other = librarian.post(path, body), librarian.post(alias, body)
        assert (one.status, one.body) == (other.status, other.body)
    paths = librarian.get("/openapi.json").json["paths"]
    assert paths[alias]["post"] == paths[path]["post"]


def test_every_reason_is_in_the_table():
    assert {name: (kind.status, kind.tei_status, kind.tei_type) for name, kind in KINDS.items()} == STATUS


@pytest.mark.parametrize("path", [*POSTS, *GETS])
def test_a_sound_request_is_answered_as_it_is_described(librarian, path):
    method = "POST" if path in POSTS else "GET"
    answer = librarian.ask(method, path, POSTS.get(path))
    described = librarian.get("/openapi.json").json["paths"][path][method.lower()]["responses"]["200"]
    assert answer.status == 200
    assert answer.headers["content-type"].split(";")[0] in described["content"]


def test_any_name_of_a_model_if_the_server_is_started_so(server):
    with serving(rate=50_000.0, any_model=True) as anyone:
        answer = anyone.post(OPENAI, {"input": "a", "model": "text-embedding-3-small"})
        assert answer.json == server.post(OPENAI, {"input": "a"}).json  # it names the model that answered


# ---- answers


def of_openai(answer):
    assert [each["index"] for each in answer.json["data"]] == list(range(len(answer.json["data"])))
    assert {answer.json["object"], *(each["object"] for each in answer.json["data"])} == {"list", "embedding"}
    return [each["embedding"] for each in answer.json["data"]]


def of_base64(answer):
    return [np.frombuffer(base64.b64decode(row), "<f4") for row in of_openai(answer)]


def of_bytes(answer):
    assert answer.headers["content-type"] == "application/octet-stream"
    rows, dim = map(int, answer.headers["x-embedding-shape"].split(","))
    return np.frombuffer(answer.body, "<f4").reshape(rows, dim)


def of_json(answer):
    return answer.json


OCTETS = {"accept": "application/octet-stream"}
VECTORS = [
    (OPENAI, {}, {}, of_openai, {}),
    (OPENAI, {"model": "default"}, {}, of_openai, {}),
    (OPENAI, {"encoding_format": "base64"}, {}, of_base64, {}),
    (OPENAI, {"encoding_format": "bytes"}, {}, of_bytes, {}),
    (OPENAI, {}, OCTETS, of_bytes, {}),
    (OPENAI, {"dimensions": 7}, {}, of_openai, {"truncate_dim": 7}),
    (OPENAI, {"dimensions": 80.0}, {}, of_openai, {"truncate_dim": 80}),  # a whole number to JSON Schema
    (OPENAI, {"normalize": False}, {}, of_openai, {"normalize_embeddings": False}),
    (OPENAI, {"dimensions": None, "encoding_format": None, "user": "u"}, {}, of_openai, {}),  # null is absent
    *((OPENAI, {"input_type": name, "truncate": "END"}, {}, of_openai, {}) for name in sum(TYPES, ())),
    (EMBED, {}, {}, of_json, {}),
    (EMBED, {}, OCTETS, of_bytes, {}),
    (EMBED, {"normalize": True, "truncation_direction": "Right"}, {}, of_json, {}),
    (EMBED, {"normalize": False}, {}, of_json, {"normalize_embeddings": False}),
    (EMBED, {"dimensions": 5}, {}, of_json, {"truncate_dim": 5}),
]


@pytest.mark.parametrize(("path", "fields", "headers", "read", "options"), VECTORS)
def test_vectors_are_the_runtimes_to_the_bit(librarian, runtime, path, fields, headers, read, options):
    field, want = next(iter(POSTS[path])), runtime.encode(TEXTS, **{"normalize_embeddings": True} | options)
    for texts, rows in ((TEXTS, want), (TEXTS[0], want[:1])):
        answer = librarian.post(path, {field: texts} | fields, **headers)
        assert answer.status == 200
        assert np.array_equal(np.array(read(answer), np.float32), rows)


def test_usage_counts_real_tokens(librarian, runtime):
    usage = librarian.post(OPENAI, {"input": TEXTS}).json["usage"]
    tokens = int(runtime.tokenizer(TEXTS).offsets[-1])
    assert usage == {"prompt_tokens": tokens, "total_tokens": tokens, "truncated_texts": 0}


def test_similarity_is_the_runtimes(librarian, runtime):
    body = {"inputs": {"source_sentence": "a cat", "sentences": TEXTS}, "parameters": {"truncate": True}}
    assert np.allclose(librarian.post(SIMILARITY, body).json, runtime.similarity(["a cat"], TEXTS)[0], atol=1e-6)


def test_tokenize_gives_ids_and_places_and_does_not_cut(librarian, runtime):
    text = "Zürich sees unbelievable cats"
    pieces = librarian.post(TOKENIZE, {"inputs": text}).json[0]
    assert [piece["id"] for piece in pieces] == runtime.tokenizer([text]).ids.tolist()
    inner = pieces[1:-1]
    assert [piece["special"] for piece in pieces] == [True, *[False] * len(inner), True]
    assert [piece["text"] for piece in pieces[-3:]] == ["unbelievable", "cats", "[SEP]"]
    assert [(piece["start"], piece["stop"]) for piece in inner[-2:]] == [(12, 24), (25, 29)]
    assert librarian.post(TOKENIZE, {"inputs": [text], "add_special_tokens": False}).json[0] == inner
    assert text[inner[0]["start"] : inner[0]["stop"]].lower().startswith("z")
    assert len(librarian.post(TOKENIZE, {"inputs": LONG}).json[0]) == 502


CUT = {
    (OPENAI, "truncate"): {"input": ["short", LONG]},
    (EMBED, "truncate"): {"inputs": [*["short"] * 70, LONG]},  # in the second piece that is tokenized
    (SIMILARITY, "parameters.truncate"): {"inputs": {"source_sentence": "short", "sentences": [LONG]}},
}


@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize(("path", "field"), CUT)
def test_a_text_that_is_too_long_is_cut_and_counted_or_refused(librarian, runtime, monkeypatch, path, field):
    counted = librarian.service.metrics.value("fastflow_truncated_texts")
    answer = librarian.post(path, CUT[path, field])
    assert answer.status == 200
    assert librarian.service.metrics.value("fastflow_truncated_texts") == counted + 1
    assert answer.headers["x-truncated-texts"] == "1"
    if path == OPENAI:
        assert answer.json["usage"]["truncated_texts"] == 1
        assert np.array_equal(np.float32(of_openai(answer)[1]), runtime.encode(LONG, normalize_embeddings=True))
    monkeypatch.setitem(POSTS, path, CUT[path, field])
    place = 70 if path == EMBED else 1
    for strictly in (False, "NONE") if path == OPENAI else (False,):
        strict = librarian.post(path, with_field(path, field, strictly))
        check_refusal(librarian, path, strict, "validation", f"text {place} has more than 256 tokens")
    assert librarian.service.engine.queue.jobs == 0


LISTED = (EMBED, {"inputs": ["a", "b"]})


@pytest.mark.parametrize(("path", "body"), [*((path, POSTS[path]) for path in COMPUTED), LISTED])
def test_each_request_is_counted_and_its_times_are_told(librarian, path, body):
    metrics = librarian.service.metrics
    texts = 2 if path == SIMILARITY or (path, body) == LISTED else 1
    method = {"method": "batch" if texts == 2 else "single"}
    names = [("te_request_count", method), ("te_request_success", method), ("te_embed_success", {})]
    before = [metrics.value(name, **labels) for name, labels in names]
    failed = metrics.value("te_request_failure", err="validation")
    answer = librarian.post(path, body)
    after = [metrics.value(name, **labels) for name, labels in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, texts]
    assert {"x-queue-time", "x-inference-time", "x-tokenization-time"} <= set(answer.headers)
    assert int(answer.headers["x-compute-tokens"]) == 3 * texts
    librarian.post(path, {})
    assert metrics.value("te_request_failure", err="validation") == failed + 1


def test_pages_about_the_server(librarian, runtime):
    info = librarian.get("/info").json
    assert (info["model_id"], info["fingerprint"]) == ("default", runtime.fingerprint)
    assert (info["max_input_length"], info["dim"], info["max_client_batch_size"]) == (256, 256, 2048)
    assert info["auto_truncate"] is True
    assert info["max_batch_tokens"] > 0
    assert librarian.get("/health").json == {"status": "ok"}
    metrics = librarian.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert b'te_request_count{method="single"}' in metrics.body


def test_the_description_is_as_it_was(librarian):
    """Its fields, bounds, answers and refusals: a change of the hash is a change of the interface."""
    description = librarian.get("/openapi.json").json
    described = json.dumps(description["paths"], sort_keys=True).encode()
    assert hashlib.sha256(described).hexdigest()[:16] == "8791fec3bcbea15d"
