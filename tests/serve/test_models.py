"""Several models in one server, a line of the log for each request, and metrics by route and status."""

import json
import logging
import re

import numpy as np
import pytest
from model.hub import Hub
from model.hub import serving as serving_hub

import fastflow
from fastflow.errors import UsageError
from fastflow.serve import ServerSettings
from fastflow.serve.model import ServedModel
from fastflow.serve.service import Service

from support.commands import run
from support.servers import serving, serving_process, until


@pytest.fixture(scope="module")
def both():
    """``default``, and ``static`` beside it."""
    other = ServedModel(fastflow.Runtime("static", "cpu"), first=False)
    with serving(None, others=[other]) as server:
        yield server


def embed(server, **fields):
    answer = server.post("/v1/embeddings", {"input": "a dog ran", **fields})
    assert answer.status == 200, answer.body
    return answer.json


def vector(answer):
    return np.array(answer["data"][0]["embedding"], np.float32)


@pytest.mark.parametrize("name", ["default", "static"])
def test_a_request_is_answered_by_the_model_that_it_names(both, name):
    found = embed(both, model=name)
    assert found["model"] == name
    wanted = fastflow.Runtime(name, "cpu").encode("a dog ran", normalize_embeddings=True)
    assert np.abs(vector(found) - wanted).max() < 1e-6


def test_a_request_without_a_name_and_other_routes_are_of_the_first_model(both):
    first = vector(embed(both, model="default"))
    assert np.array_equal(vector(embed(both)), first)
    assert np.array_equal(np.array(both.post("/embed", {"inputs": "a dog ran"}).json[0], np.float32), first)
    assert both.get("/info").json["model_id"] == "default"


def test_the_models_are_listed_with_their_own_root(both):
    assert [(each["id"], each["root"]) for each in both.get("/v1/models").json["data"]] == [
        ("default", "default"), ("static", "static"),
    ]  # fmt: skip
    assert both.get("/v1/models/static").json["root"] == "static"
    refused = both.post("/v1/embeddings", {"input": "a", "model": "other"})
    assert refused.status == 404
    assert "this server has default or static" in refused.json["error"]["message"]
    assert refused.json["error"]["code"] == "model_not_found"


def test_bounds_are_those_of_the_named_model(both):
    with pytest.raises(UsageError, match="two models have the name default"):
        Service(both.service.model, ServerSettings(), 1e6, others=[both.service.model])
    assert both.post("/v1/embeddings", {"input": "a", "model": "static", "dimensions": 257}).status == 400
    assert len(vector(embed(both, model="static", dimensions=3))) == 3


def test_models_compute_in_turn(both):
    first, second = both.service.every
    assert first.engine.turn is second.engine.turn
    assert first.metrics is second.metrics
    with first.engine.turn:
        assert not second.engine.is_stuck(1e9)


def test_answers_are_counted_by_route_and_status(both):
    def count(route, status):
        page = both.get("/metrics").body.decode()
        found = re.search(rf'^fastflow_requests{{route="{re.escape(route)}",status="{status}"}} (\d+)$', page, re.M)
        return int(found[1]) if found else 0

    cases = (
        ("GET", "/health", "/health", 200), ("GET", "/v1/models/static", "/v1/models/{name}", 200),
        ("GET", "/v1/models/none", "/v1/models/{name}", 404), ("GET", "/nothing/at/all", "other", 404),
        ("POST", "/embed", "/embed", 200), ("GET", "/embed", "/embed", 405),
    )  # fmt: skip
    for method, path, route, status in cases:
        before = count(route, status)
        both.ask(method, path, {"inputs": "a"} if method == "POST" else None)
        until(lambda route=route, status=status, before=before: count(route, status) == before + 1)
    page = both.get("/metrics").body.decode()
    assert 'fastflow_request_duration_count{route="/embed"}' in page
    assert "nothing/at/all" not in page


def test_a_request_keeps_its_id_or_gets_one(both, caplog):
    logger = logging.getLogger("fastflow.access")
    logger.setLevel(logging.INFO)
    try:
        with caplog.at_level(logging.INFO, "fastflow.access"):
            assert both.get("/health", **{"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
            for bad in ("", "a b", "x" * 200, 'a"b'):
                assert re.fullmatch(
                    "[0-9a-f]{32}", both.get("/health", **{"x-request-id": bad}).headers["x-request-id"]
                )
            refused = both.post("/v1/embeddings", {"input": "a secret", "model": "other"})
            until(lambda: any(each.name == "fastflow.access" and each.args["status"] == 404 for each in caplog.records))
    finally:
        logger.setLevel(logging.NOTSET)
    access = [record for record in caplog.records if record.name == "fastflow.access"]
    entry = next(record for record in access if record.args["status"] == 404)
    assert entry.args["id"] == refused.headers["x-request-id"]
    assert (entry.args["method"], entry.args["route"]) == ("POST", "/v1/embeddings")
    assert "secret" not in entry.getMessage()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["none", "text", "json"])
def test_the_log_has_a_line_a_request(tmp_path, form):
    with serving_process("--log-format", form, "-m", "static", "-m", "default", folder=tmp_path) as server:
        assert server.post("/embed", {"inputs": "a secret text"}).status == 200
        assert server.post("/embed", {"inputs": 3}, **{"x-request-id": "mine"}).status == 422
        server.process.terminate()
        said = [*server.said, *server.process.stderr]
    lines = [line for line in said if "/embed" in line]
    assert "secret" not in "".join(said)
    assert any("serving static and default at" in line for line in said)
    if form == "none":
        assert lines == []
    elif form == "text":
        assert re.fullmatch(r"fastflow: POST /embed 422 [\d.]+ s, request mine", lines[1].strip())
    else:
        first, second = map(json.loads, lines)
        assert first.keys() == {"time", "level", "method", "route", "status", "seconds", "id"}
        assert (second["status"], second["id"], second["level"]) == (422, "mine", "info")
        assert 0 < first["seconds"] < 60


@pytest.mark.slow
def test_a_model_of_the_hub_is_fetched_once_and_served_by_its_name(model, tmp_path):
    hub = Hub()
    hub.add(
        "someone/model",
        {path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*") if path.is_file()},
    )
    with serving_hub(hub) as address:
        env = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        env |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}
        for _ in range(2):
            with serving_process("--pull", "someone/model", folder=tmp_path, env=env) as server:
                assert embed(server, model="someone/model")["model"] == "someone/model"
    assert (tmp_path / "cache" / "fastflow" / "hub" / "someone--model" / "hub.json").is_file()


def test_a_model_that_is_named_twice_is_refused():
    done = run("serve", "-m", "static", "-m", "static")
    assert done.exit_code == 2
    assert "-m names a model twice: name each once" in done.stderr
