"""One request through the service: its body is bounded, its client watched, its counts kept."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

import fastflow
from fastflow.serve.model import ServedModel

from support.servers import WAIT, in_parallel, serving

BODY = b'{"inputs": "a"}'


class Gated(ServedModel):
    """A model that computes when the test lets it."""

    def __init__(self) -> None:
        super().__init__(fastflow.Runtime(None, "cpu"))
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        self.texts = 0

    def embed(self, tokens, how):
        self.entered.set()
        assert self.gate.wait(WAIT)
        self.texts += len(tokens.offsets) - 1
        return super().embed(tokens, how)


@pytest.fixture
def gated():
    model = Gated()
    with serving(model, rate=50_000.0, max_queue=0.02, max_bodies=40_000_000) as server:
        yield server, model
        model.gate.set()


def until(true) -> None:
    end = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)


def hold(server, model) -> threading.Thread:
    """A request that is being computed until the gate opens."""
    model.gate.clear()
    model.entered.clear()
    thread = threading.Thread(target=server.post, args=("/embed", {"inputs": "first"}))
    thread.start()
    assert model.entered.wait(WAIT)
    return thread


def request(body: bytes, length: int | None = None) -> bytes:
    head = "POST /embed HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def test_a_client_that_hangs_up_is_not_computed(gated):
    server, model = gated
    held = hold(server, model)
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(request(BODY))
        until(lambda: server.service.engine.queue.jobs == 1)
    until(lambda: server.service.metrics.value("fastflow_cancelled_requests") == 1)
    model.gate.set()
    held.join(WAIT)
    assert server.post("/embed", {"inputs": "b"}).status == 200
    assert model.texts == 2
    until(lambda: server.service.active == 0)


def test_overload_is_429_with_the_time_to_wait_and_at_once(gated):
    server, model = gated
    held = hold(server, model)
    texts = ["word " * 100] * 20  # 0.04 s of work, and a request may wait 0.02 s
    waiting = threading.Thread(target=server.post, args=("/embed", {"inputs": texts}))
    waiting.start()
    until(lambda: server.service.engine.queue.jobs == 1)
    asked = ("/embed", {"inputs": "a"}), ("/embed", {"inputs": ["a", "b"]}), ("/v1/embeddings", {"input": "a"})
    for answer in [server.post(*each) for each in asked]:
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    unread = server.ask("POST", "/embed", raw=b"no json")  # refused before it is read
    assert unread.status == 429
    assert server.get("/info").status == 200
    model.gate.set()
    for thread in (held, waiting):
        thread.join(WAIT)
    assert server.service.metrics.value("te_request_failure", err="overloaded") == 4


def test_a_draining_server_finishes_and_takes_nothing_new(gated):
    server, model = gated
    held = hold(server, model)
    server.service.draining = True
    for answer in (server.post("/embed", {"inputs": "a"}), server.get("/info"), server.get("/health")):
        assert (answer.status, answer.json["error_type"]) == (503, "Unhealthy")
    assert server.get("/metrics").status == 200
    model.gate.set()
    held.join(WAIT)
    server.service.draining = False
    assert model.texts == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_is_not_said_to_be_json_is_415(server, kind):
    assert server.ask("POST", "/embed", headers={"content-type": kind}, raw=BODY).status == 415


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"inputs": NaN}', b"[" * 50_000])
def test_a_body_that_is_no_json_is_400(server, body):
    headers = {"content-type": "application/json; charset=utf-8"}
    assert server.ask("POST", "/embed", headers=headers, raw=body).status == 400
    assert server.ask("POST", "/v1/embeddings", headers=headers, raw=body).json["error"]["param"] is None


def test_bodies_that_are_being_read_share_a_bound(gated):
    server, _ = gated
    part = b" " * 14_000_000
    connections = [socket.create_connection((server.host, server.port)) for _ in range(3)]
    try:
        for connection in connections[:2]:
            connection.sendall(request(part, 15_000_000))
        until(lambda: server.service.bodies >= 28_000_000)
        connections[2].sendall(request(part[:100], 15_000_000))
        threading.Thread(target=_send, args=(connections[2], part), daemon=True).start()
        assert connections[2].recv(12) == b"HTTP/1.1 429"
    finally:
        for connection in connections:
            connection.close()
    until(lambda: server.service.bodies == 0)


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # refused, and so closed
        connection.sendall(data)


@pytest.mark.slow
def test_large_bodies_and_answers_are_whole(server, runtime):
    texts = [f"text number {i} of a long list of them" for i in range(1500)]
    answer = server.post("/embed", {"inputs": texts})
    assert np.array_equal(np.array(answer.json, np.float32), runtime.encode(texts, normalize_embeddings=True))


def test_many_clients_at_once_get_their_own_vectors(server, runtime):
    texts = [f"client {i} asks for this" for i in range(48)]
    answers = in_parallel([lambda text=text: server.post("/embed", {"inputs": text}).json for text in texts])
    assert np.array_equal(np.array(answers, np.float32)[:, 0], runtime.encode(texts, normalize_embeddings=True))
    queue = server.service.engine.queue
    assert (queue.jobs, queue.work, queue.turns) == (0, 0, 0)


def test_a_text_is_counted_and_its_times_are_told(server):
    metrics = server.service.metrics
    before = metrics.value("te_request_success", method="batch"), metrics.value("te_embed_success")
    answer = server.post("/embed", {"inputs": ["a", "b"]})
    assert metrics.value("te_request_success", method="batch") == before[0] + 1
    assert metrics.value("te_embed_success") == before[1] + 2
    assert {"x-compute-tokens", "x-queue-time", "x-inference-time", "x-tokenization-time"} <= set(answer.headers)
