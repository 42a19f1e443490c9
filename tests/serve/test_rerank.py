"""/rerank and /v1/rerank: the scores of a Reranker in the forms that clients of TEI, Cohere and Jina read."""

from __future__ import annotations

import json
from unittest.mock import Mock

import httpx
import jsonschema
import numpy as np
import pytest

import fastflow
from fastflow.errors import UsageError
from fastflow.serve.app import LEFT_OUT
from fastflow.serve.model import EmbedOptions, PairScorer, Part, compute, take_texts

from support.builders import make_sentences
from support.rerankers import change_config, make_reranker
from support.routes import check_refusal
from support.servers import WAIT, Gate, request, serving, serving_process, until

TEXTS = [*make_sentences(9, seed=2), "", "the dog. " * 100]
QUERY = TEXTS[3]
BORN = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
NUMBER, INDEX, STRING = {"type": "number"}, {"type": "integer", "minimum": 0}, {"type": "string"}


def shape(*required, **properties):
    return {"type": "object", "required": list(required), "properties": properties}


# RerankResponse of TEI 1.9's OpenAPI; the required fields of Cohere's v1 and of Jina's
RANK = shape("index", "score", index=INDEX, score=NUMBER, text=STRING)
RESULT = shape("index", "relevance_score", index=INDEX, relevance_score=NUMBER, document=shape("text", text=STRING))
RESULTS = {"type": "array", "items": RESULT}
JINA = shape("model", "usage", "results", usage=shape("total_tokens", total_tokens=INDEX), results=RESULTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_reranker(tmp_path_factory.mktemp("served") / "judge", **BORN)


@pytest.fixture(scope="module")
def logits(folder):
    with pytest.warns(fastflow.FastflowWarning, match="are cut"):
        return fastflow.Reranker(folder).predict([(QUERY, text) for text in TEXTS])


@pytest.fixture(scope="module")
def judge(folder):
    with serving(rate=50_000.0, reranker=folder) as running:
        yield running


def post(server, path, **body):
    answer = httpx.post(server.url + path, json=body, timeout=WAIT)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_scores_of_tei(judge, logits):
    best = np.argsort(-logits, kind="stable").tolist()
    raw = post(judge, "/rerank", query=QUERY, texts=TEXTS, raw_scores=True, return_text=True, truncate=True)
    jsonschema.validate(raw, {"type": "array", "items": RANK})
    assert [each["index"] for each in raw] == best
    assert [each["text"] for each in raw] == [TEXTS[i] for i in best]
    np.testing.assert_allclose([each["score"] for each in raw], logits[best], atol=1e-5)
    plain = post(judge, "/rerank", query=QUERY, texts=TEXTS)
    jsonschema.validate(plain, {"type": "array", "items": RANK})
    np.testing.assert_allclose([each["score"] for each in plain], 1 / (1 + np.exp(-logits[best])), atol=1e-5)
    assert "text" not in plain[0]


def test_scores_of_cohere_and_jina(judge, logits):
    best = np.argsort(-logits, kind="stable").tolist()
    found = post(judge, "/v1/rerank", model="judge", query=QUERY, documents=TEXTS, top_n=4, return_documents=True)
    jsonschema.validate(found, JINA)
    assert [each["index"] for each in found["results"]] == best[:4]
    assert [each["document"]["text"] for each in found["results"]] == [TEXTS[i] for i in best[:4]]
    scores = [each["relevance_score"] for each in found["results"]]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits[best[:4]])), atol=1e-5)
    assert (found["model"], found["usage"]["truncated_texts"]) == ("judge", 1)
    assert found["usage"]["total_tokens"] > 128
    whole = post(judge, "/v1/rerank", query=QUERY, documents=TEXTS)
    assert [each["index"] for each in whole["results"]] == best
    assert "document" not in whole["results"][0]


def test_the_answers_are_as_they_are_described(judge, server):
    paths = judge.get("/openapi.json").json["paths"]
    for path, field in (("/rerank", "texts"), ("/v1/rerank", "documents")):
        schema = paths[path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(post(judge, path, query="a", **{field: ["b"]}), schema)
        assert path not in server.get("/openapi.json").json["paths"]
    assert judge.get("/info").json["reranker"] == {"model": "judge", "max_input_length": 128, "dtype": "float32"}
    assert server.get("/info").json["reranker"] is None
    check_refusal(server, "/rerank", server.post("/rerank", {}), "path", LEFT_OUT["/rerank"])
    check_refusal(server, "/v1/rerank", server.post("/v1/rerank", {}), "path", "/v1/rerank is no route")


REFUSED = [
    ("/rerank", {"texts": ["a"]}, "validation", "query is missing"),
    ("/rerank", {"query": "a", "texts": []}, "empty", "texts holds no text"),
    ("/rerank", {"query": "a", "texts": "b"}, "validation", "texts must be a list of strings"),
    ("/rerank", {"query": ["a"], "texts": ["b"]}, "validation", "query must be a string"),
    ("/rerank", {"query": "a", "texts": ["b"] * 2049}, "validation", "a request may hold 2048"),
    ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": 1}, "validation", "raw_scores must be true or false"),
    ("/rerank", {"query": "a", "texts": ["b", TEXTS[-1]], "truncate": False}, "validation", "query with text 1 has"),
    ("/rerank", {"query": "a", "texts": ["b"], "truncation_direction": "Left"}, "validation", "must be one of right"),
    ("/rerank", {"query": "\ud800", "texts": ["b"]}, "tokenizer", "half a surrogate pair"),
    ("/v1/rerank", {"query": "a", "documents": [{"text": "b"}]}, "validation", "documents[0] must be a string"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "validation", "top_n must be a whole number"),
    (
        "/v1/rerank",
        {"query": "a", "documents": ["b"], "model": "x"},
        "model",
        "x does not exist here; this server has j",
    ),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": []}, "validation", "rank_fields is no field"),
]


@pytest.mark.parametrize(("path", "body", "kind", "sentence"), REFUSED, ids=[sentence for *_, sentence in REFUSED])
def test_a_request_is_refused(judge, path, body, kind, sentence):
    check_refusal(judge, path, judge.post(path, body), kind, sentence)


def test_requests_take_turns_and_leave(folder, monkeypatch):
    """A request that would wait or take too long is refused at once, and one that left is given up."""
    with serving(rate=50_000.0, reranker=folder, max_queue=0.5, timeout=WAIT) as server:
        scorer, body, engine = server.service.scorer, {"query": "a", "texts": ["b"]}, server.service.engines[1]
        gate, queue = Gate(scorer.embed), engine.queue
        monkeypatch.setattr(scorer, "embed", gate)
        with server.connect() as waiting:
            waiting.sendall(request("/rerank", json.dumps(body).encode()))
            assert gate.entered.wait(WAIT)
            queue.rate = 1.0  # token a second
            check_refusal(server, "/rerank", server.post("/rerank", body), "overloaded", "the server is busy")
            assert server.post("/embed", {"inputs": "a"}).status == 200
        until(lambda: server.service.metrics.value("fastflow_cancelled_requests") == 1)
        gate.opened.set()
        until(lambda: queue.wait == 0)
        queue.rate = 1.0
        many = {"query": "a", "texts": ["b"] * 99}
        check_refusal(
            server, "/rerank", server.post("/rerank", many), "validation", "and a request has 30 s: send fewer"
        )
        queue.rate = 50_000.0
        assert len(post(server, "/rerank", **body)) == 1
        monkeypatch.setattr(scorer, "embed", Mock(side_effect=fastflow.FastflowError("no")))
        check_refusal(server, "/rerank", server.post("/rerank", body), "backend", "the texts could not be computed: no")
    assert not engine._thread.is_alive()


def test_requests_are_joined_and_the_models_prompt_is_put_before_the_query(tmp_path):
    """Pairs of several requests, with token types, are one batch; scores are those of ``predict``."""
    path = make_reranker(tmp_path / "m", saved=True, **BORN)
    settings = {"prompts": {"ask": "the dog: "}, "default_prompt_name": "ask"}
    scorer = PairScorer(fastflow.Reranker(change_config(path, "config_sentence_transformers.json", **settings)))
    pairs = [[*zip(TEXTS[at : at + 4], TEXTS[10 - at : 6 - at : -1], strict=True)] for at in (0, 4)]
    tokens = [scorer.tokenize(each, scorer.prompt) for each in pairs]
    assert tokens[0].seconds is not None
    parts = [Part(take_texts(each, 1, len(each.offsets) - 1), EmbedOptions()) for each in tokens]
    found = np.concatenate(compute(scorer.embed, parts))[:, 0]
    want = scorer.reranker.predict([pair for each in pairs for pair in each[1:]])
    np.testing.assert_allclose(found, want, atol=1e-6)


def test_a_model_of_several_labels_is_refused(tmp_path):
    reranker = fastflow.Reranker(make_reranker(tmp_path / "three", labels=3))
    with pytest.raises(UsageError, match=r"--reranker takes a model of one label, and .*three has several"):
        PairScorer(reranker)


@pytest.mark.whole
def test_the_command_loads_a_reranker(folder, tmp_path):
    with serving_process("--reranker", folder, "--dtype", "int8", folder=tmp_path) as server:
        assert len(server.post("/rerank", {"query": "a", "texts": ["b", "c"]}).json) == 2
        assert server.get("/info").json["reranker"]["dtype"] == "int8"
