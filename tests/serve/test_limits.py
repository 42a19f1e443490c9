"""The guard: keys on every route, and bodies that are too large."""

from __future__ import annotations

import hmac

import pytest

from fastflow.serve import page

from support.servers import serving

KEYS = ("first-key", "second-key")
OPEN = {"/health", "/metrics", *page.PATHS}  # the page is a shell without data


@pytest.fixture(scope="module")
def locked():
    with serving(keys=KEYS, max_body=2000, rate=50_000.0) as running:
        yield running


def routes(server) -> list[str]:
    return [route.path for route in server.app.routes] + ["/", "/no-such-route", "/v1/other"]


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "Basic first-key", "first-key", "Bearer first-key2"]
)
def test_nothing_but_health_and_metrics_without_a_key(locked, header):
    for path in routes(locked):
        for method in ("GET", "POST"):
            answer = locked.ask(method, path, headers={"authorization": header} if header else {})
            if path in OPEN:
                assert answer.status != 401, path
            else:
                assert answer.status == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(locked, key):
    assert locked.get("/v1/models", authorization=f"Bearer {key}").status == 200
    assert locked.post("/embed", {"inputs": "a"}, authorization=f"bearer  {key}").status == 200


def test_a_wrong_key_is_openais_error_on_openais_routes(locked):
    assert locked.get("/v1/models").json["error"]["code"] == "invalid_api_key"
    assert locked.get("/info").json["error_type"] == "Validation"


def test_keys_are_compared_in_constant_time(locked, monkeypatch):
    compared = []

    def compare(given, key):
        compared.append(key)
        return hmac.compare_digest(given, key)

    monkeypatch.setattr("fastflow.serve.limits.compare_digest", compare)
    locked.get("/v1/models", authorization="Bearer first-key")
    assert compared == [b"first-key", b"second-key"]  # all, whichever fits


def test_a_body_that_is_too_large_is_413_before_it_is_read(locked):
    key = {"authorization": "Bearer first-key"}
    answer = locked.ask("POST", "/v1/embeddings", headers=key | {"content-length": "2001"}, raw=b"x")
    assert (answer.status, answer.json["error"]["type"]) == (413, "invalid_request_error")
    assert locked.ask("POST", "/embed", headers=key | {"content-length": "2001"}, raw=b"x").status == 413


def test_a_body_of_unknown_length_is_413_as_soon_as_it_is_too_large(locked):
    def parts():
        for _ in range(5):
            yield b" " * 500

    headers = {"authorization": "Bearer first-key"}
    assert locked.ask("POST", "/embed", headers=headers, raw=parts()).status == 413
    assert locked.service.bodies == 0


def test_what_is_refused_is_counted(locked):
    before = locked.service.metrics.value("te_request_failure", err="key")
    locked.get("/info")
    assert locked.service.metrics.value("te_request_failure", err="key") == before + 1
