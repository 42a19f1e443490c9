"""The route contract before a route sees a request: methods, types, keys, hosts and sizes, on every route."""

from __future__ import annotations

import hmac
import http.client

import pytest

from support.routes import GETS, POSTS, PUBLIC, UNKNOWN, check_refusal
from support.servers import serving, until

KEYS = ("first-key", "second-key")
HOSTS = ("localhost", "my-desk")
EVERY = [*POSTS, *GETS, *UNKNOWN]


@pytest.fixture(scope="module")
def locked(library):
    """A server that asks for a key and takes small bodies."""
    with serving(keys=KEYS, max_body=2000, rate=50_000.0, search=library) as running:
        yield running


@pytest.fixture(scope="module")
def local(library):
    """A server as it is at a loopback address without a key."""
    with serving(rate=50_000.0, hosts=HOSTS, search=library) as running:
        yield running


@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_path(librarian, path):
    check_refusal(librarian, path, librarian.get(path), "path", f"{path} is ")


@pytest.mark.parametrize("path", [*POSTS, *GETS])
def test_a_wrong_method_names_the_right_one(librarian, path):
    right, wrong = ("POST", "GET") if path in POSTS else ("GET, HEAD", "POST")
    if path == "/":
        right, wrong = "GET, HEAD, POST", "DELETE"
    for method in (wrong, "PUT", "OPTIONS"):
        answer = librarian.ask(method, path)
        check_refusal(librarian, path, answer, "method", f"{path} takes …, not {method}")
        assert sorted(answer.headers["allow"].split(", ")) == right.split(", ")


TYPES = ["text/plain", "text/plain; application/json", "text/plain, application/json", ""]
TYPES += ["application/x-www-form-urlencoded", "multipart/form-data; boundary=a"]


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_not_said_to_be_json(librarian, path):
    """Browsers send these types to any origin without asking it first; none is read as JSON."""
    counted = librarian.service.metrics.value("te_request_count", method="single")
    for kind in TYPES:
        headers = {"content-type": kind, "origin": "http://evil.example"}
        answer = librarian.ask("POST", path, headers=headers, raw=b'{"query": "a"}')
        check_refusal(librarian, path, answer, "media", "send the header Content-Type: application/json")
    assert librarian.service.metrics.value("te_request_count", method="single") == counted


@pytest.mark.parametrize("path", [*POSTS, *GETS])
def test_no_other_origin_is_given_leave(librarian, path):
    """What a browser asks before it sends application/json across, and answers that it would hand to the page."""
    ask = {"origin": "http://evil.example", "access-control-request-method": "POST",
           "access-control-request-headers": "content-type"}  # fmt: skip
    for method in ("OPTIONS", "GET"):
        answer = librarian.ask(method, path, headers=ask)
        assert not [name for name in answer.headers if name.startswith("access-control")]


# ---- keys


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "Basic first-key", "first-key", "Bearer first-key2"]
)
def test_nothing_but_the_public_pages_without_a_key(locked, header):
    failed = locked.service.metrics.value("te_request_failure", err="key")
    for path in EVERY:
        for method in ("GET", "POST"):
            answer = locked.ask(method, path, headers={"authorization": header} if header else {})
            if path in PUBLIC and (method, path) != ("POST", "/"):
                assert answer.status != 401, path
            else:
                check_refusal(locked, path, answer, "key", "the API key is missing or wrong")
                assert answer.headers["www-authenticate"] == "Bearer"
    refused = 2 * len(set(EVERY) - PUBLIC) + 1
    assert locked.service.metrics.value("te_request_failure", err="key") == failed + refused


@pytest.mark.parametrize("header", ["Bearer first-key", "bearer  second-key"])
def test_each_key_opens_every_route(locked, header):
    for path in [*POSTS, *GETS]:
        answer = locked.ask("POST" if path in POSTS else "GET", path, POSTS.get(path), {"authorization": header})
        assert answer.status == 200, path


def test_keys_are_compared_in_constant_time(locked, monkeypatch):
    compared = []

    def compare(given, key):
        compared.append(key)
        return hmac.compare_digest(given, key)

    monkeypatch.setattr("fastflow.serve.limits.compare_digest", compare)
    locked.get("/v1/models", authorization="Bearer first-key")
    assert compared == [b"first-key", b"second-key"]  # all, whichever fits


def test_a_key_is_described_where_one_is_needed(locked):
    found = locked.get("/openapi.json", authorization="Bearer first-key").json
    assert found["security"] == [{"key": []}]
    open_paths = {path for path in GETS if found["paths"][path]["get"].get("security") == []}
    assert open_paths == PUBLIC


# ---- sizes


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_too_large(locked, path):
    """Refused before it is read if its length is told, else as soon as it is too large."""
    key = {"authorization": "Bearer first-key"}
    for headers, raw in ((key | {"content-length": "2001"}, b"x"), (key, (b" " * 500 for _ in range(5)))):
        answer = locked.ask("POST", path, headers=headers, raw=raw)
        check_refusal(locked, path, answer, "body", "the body is larger than 2000 bytes")
    until(lambda: locked.service.bodies == 0)


# ---- names that lead here


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
             "[::2]", "evil@localhost", "localhost:80:80", "", "[::1].evil.example"],
)  # fmt: skip
def test_a_foreign_name_is_refused_on_every_route(local, host):
    failed = local.service.metrics.value("te_request_failure", err="host")
    for path in EVERY:
        for method in ("GET", "POST", "OPTIONS"):
            answer = local.ask(method, path, headers={"host": host})
            check_refusal(local, path, answer, "host", "answers to localhost alone")
    assert local.service.metrics.value("te_request_failure", err="host") == failed + 3 * len(EVERY)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:80", "127.0.0.2", "my-desk:8080"]
)
def test_names_of_this_machine_are_answered(local, host):
    assert local.ask("GET", "/info", headers={"host": host}).status == 200


def test_a_request_without_a_host_is_no_browsers(local):
    connection = http.client.HTTPConnection(local.host, local.port, timeout=30)
    connection.putrequest("GET", "/info", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.slow
def test_any_name_goes_with_a_key_and_beyond_this_machine(server):
    assert server.ask("GET", "/info", headers={"host": "my.example"}).status == 200
    with serving(rate=50_000.0, hosts=HOSTS, keys=("k",)) as locked:
        assert locked.get("/info", host="my.example", authorization="Bearer k").status == 200
