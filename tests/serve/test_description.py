"""The OpenAPI description is true: its routes are the server's, and answers are as it says."""

from __future__ import annotations

import pytest

from support.servers import serving


@pytest.fixture(scope="module")
def description(server):
    return server.get("/openapi.json").json


def test_it_names_every_route_with_its_method(server, description):
    routes = {route.path: {m.lower() for m in route.methods} - {"head"} for route in server.app.routes}
    assert {path: set(item) for path, item in description["paths"].items()} == routes


def test_every_route_answers_as_it_says(server, description):
    bodies = {
        "/v1/embeddings": {"input": "a"},
        "/embed": {"inputs": "a"},
        "/tokenize": {"inputs": "a"},
        "/compare": {"pairs": [["a", "b"]]},
        "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    }
    for path, item in description["paths"].items():
        for method, operation in item.items():
            answer = server.ask(method.upper(), path, bodies.get(path))
            assert answer.status == 200, path
            assert answer.headers["content-type"].split(";")[0] in operation["responses"]["200"]["content"]
            if method == "post":
                for body in (None, [], {}, {"no": 1}):
                    assert str(server.ask("POST", path, body).status) in operation["responses"], (path, body)


def test_the_limits_are_those_of_the_server(description):
    fields = description["paths"]["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert fields["required"] == ["input"]
    assert fields["additionalProperties"] is False
    assert fields["properties"]["dimensions"]["anyOf"][0]["maximum"] == 256
    assert fields["properties"]["input"]["anyOf"][1]["maxItems"] == 2048


@pytest.mark.slow
def test_a_key_is_described_where_one_is_needed():
    with serving(keys=("k",), rate=50_000.0) as server:
        found = server.get("/openapi.json", authorization="Bearer k").json
        assert found["security"] == [{"key": []}]
        assert found["paths"]["/health"]["get"]["security"] == []
