"""The route contract before a route sees a request, and under load: on every route."""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import re
import threading

import pytest

from support.routes import COMPUTED, GETS, HEALTH, NEEDED, POSTS, PUBLIC, check_refusal, with_field
from support.servers import WAIT, Gate, request, serving, until


@pytest.mark.parametrize("path", [*POSTS, *GETS])
def test_no_other_origin_is_given_leave(librarian, path):
    """What a browser asks before it sends application/json across, and answers that it would hand to the page."""
    ask = {"origin": "http://evil.example", "access-control-request-method": "POST",
           "access-control-request-headers": "content-type"}  # fmt: skip
    for method in ("OPTIONS", "GET"):
        answer = librarian.ask(method, path, headers=ask)
        assert not [name for name in answer.headers if name.startswith("access-control")]


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

    monkeypatch.setattr("fastflow.serve.app.compare_digest", compare)
    locked.get("/v1/models", authorization="Bearer first-key")
    assert compared == [b"first-key", b"second-key"]  # all, whichever fits


def test_a_key_is_described_where_one_is_needed(locked):
    found = locked.get("/openapi.json", authorization="Bearer first-key").json
    assert found["security"] == [{"key": []}]
    open_paths = {path for path in GETS if found["paths"][path]["get"].get("security") == []}
    assert open_paths == PUBLIC
    assert {locked.get(path).status for path in PUBLIC} == {200}


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
    with serving(rate=50_000.0, hosts=("localhost",), keys=("k",)) as locked:
        assert locked.get("/info", host="my.example", authorization="Bearer k").status == 200


@pytest.fixture
def gated(library):
    """A server that computes a first request until the gate of its model opens, and that gate."""
    with serving(rate=50_000.0, max_queue=0.02, max_bodies=40_000_000, search=library) as server:
        gate = server.service.model.embed = Gate(server.service.model.embed)
        held = threading.Thread(target=server.post, args=("/embed", {"inputs": "first"}))
        held.start()
        assert gate.entered.wait(WAIT)
        yield server, gate
        gate.opened.set()
        held.join(WAIT)


@contextlib.contextmanager
def waiting(server, texts):
    """A request that waits in the queue; at the end, its answer has come."""
    thread = threading.Thread(target=server.post, args=("/embed", {"inputs": texts}))
    thread.start()
    until(lambda: server.service.engine.queue.jobs == 1)
    yield
    thread.join(WAIT)


def test_a_client_that_hangs_up_is_not_computed_on_any_route(gated):
    server, gate = gated
    for at, path in enumerate(COMPUTED, 1):
        with server.connect() as connection:
            connection.sendall(request(path, json.dumps(POSTS[path]).encode()))
            until(lambda: server.service.engine.queue.jobs == 1)
        until(lambda at=at: server.service.metrics.value("fastflow_cancelled_requests") == at)
    gate.opened.set()
    assert server.post("/embed", {"inputs": "b"}).status == 200
    assert sum(len(tokens.offsets) - 1 for tokens, _ in gate.seen) == 2  # "first" and "b"
    until(lambda: server.service.active == 0)
    assert server.service.engine.queue.jobs == 0


def test_overload_is_429_at_once_and_before_a_body_is_read(gated):
    server, gate = gated
    with waiting(server, ["word " * 100] * 20):  # 0.04 s of work, and a request may wait 0.02 s
        for path in COMPUTED:
            for answer in (server.post(path, POSTS[path]), server.ask("POST", path, raw=b"no json")):
                says = "the server is busy: try again in …s, or start it with a larger --max-queue-seconds"
                check_refusal(server, path, answer, "overloaded", says)
                assert answer.headers["retry-after"] == "1"
        assert server.post("/embed", {"inputs": ["a", "b"]}).status == server.post("/", {"inputs": "a"}).status == 429
        assert [server.get(path).status for path in ("/", "/info")] == [200, 200]
        assert server.post("/tokenize", {"inputs": "a"}).status == 200
        gate.opened.set()
    assert server.service.metrics.value("te_request_failure", err="overloaded") == 2 * len(COMPUTED) + 2


def test_a_draining_server_finishes_and_takes_nothing_new(gated):
    server, gate = gated
    server.service.draining = True
    for path in [*POSTS, *GETS]:
        answer = server.ask("POST" if path in POSTS else "GET", path, POSTS.get(path))
        if path in PUBLIC - HEALTH:
            assert answer.status == 200, path
        else:
            check_refusal(server, path, answer, "unhealthy", "the server is going down")
    assert server.post("/", {"inputs": "a"}).status == 503
    gate.opened.set()
    until(lambda: server.service.metrics.value("te_request_success", method="single") == 1)
    server.service.draining = False
    assert len(gate.seen) == 1


@pytest.mark.slow
def test_texts_that_are_not_computed_in_time(library):
    with serving(rate=1.0, timeout=5.0, search=library) as server:
        for path in COMPUTED:
            answer = server.post(path, with_field(path, NEEDED[path], ["word " * 40] * 2))
            check_refusal(server, path, answer, "validation", "send fewer at once")


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["embed", "resolve_prompt"])
def test_a_fault_of_ours_is_an_answer_without_the_text(library, monkeypatch, caplog, broken):
    with serving(rate=50_000.0, search=library) as server:
        monkeypatch.setattr(server.service.model, broken, lambda *arguments: 1 / 0)
        for path in COMPUTED:
            body = json.loads(json.dumps(POSTS[path]).replace('"a"', '"a secret"'))
            check_refusal(server, path, server.post(path, body), "backend")
        monkeypatch.undo()
        assert server.post("/embed", {"inputs": "a"}).status == 200
    assert "secret" not in caplog.text


def test_a_body_counts_until_its_answer(gated):
    """Its texts are held until then, so the texts of all requests that wait share the bound."""
    server, gate = gated
    with waiting(server, "a" * 1000):
        assert server.service.bodies > 1000
        gate.opened.set()
    until(lambda: server.service.bodies == 0)


def test_bodies_share_a_bound(gated):
    server, _ = gated
    part, first = b" " * 14_000_000, server.service.bodies
    connections = [server.connect() for _ in range(3)]
    try:
        for connection in connections[:2]:
            connection.sendall(request("/embed", part, 15_000_000))
        until(lambda: server.service.bodies >= first + 28_000_000)
        connections[2].sendall(request("/embed", part[:100], 15_000_000))
        with contextlib.suppress(OSError):  # refused, and so closed
            connections[2].sendall(part[: server.service.settings.max_bodies - 28_000_000 + 1_000])
        assert re.match(rb"HTTP/1.1 429 .*\r\nretry-after: [1-9]", connections[2].recv(65536), re.S)
    finally:
        for connection in connections:
            connection.close()
    until(lambda: server.service.bodies == first)
