"""Clients that are slow, and those that send too much before a route sees them, by a raw socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
import urllib.error
import urllib.request

import httpx
import pytest

from fastflow.serve import protocol

from support.servers import WAIT, Running, request, serving, until

HEAD = b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def hasty():
    with serving(rate=50_000.0, receive=0.3, send=0.5, max_header=4096, max_connections=3) as server:
        yield server


class Clock:
    """The time of a server's event loop, which stands still until the test moves it."""

    def __init__(self, server: Running) -> None:
        self.loop = server.service.engine._loop
        self.now = self.loop.time()

    def move(self, seconds: float) -> None:
        """Let the server read all that was sent, and then ``seconds`` pass."""
        for step in (0.0, seconds, 0.0):
            self.now += step
            for _ in range(3):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(WAIT)


@pytest.fixture
def clock(hasty, monkeypatch):
    clock = Clock(hasty)
    monkeypatch.setattr(clock.loop, "time", lambda: clock.now)
    return clock


def everything(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


CHUNKED = HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
UNTYPED = CHUNKED.replace(b"content-type: application/json\r\n", b"")
BODY = b'{"inputs": "a"}'
WHOLE = request("/embed", BODY)
SMALL_CHUNKS = b"".join(b"1\r\n%c\r\n" % each for each in BODY + b" " * 20_000) + b"0\r\nx-y: z\r\n\r\n"
TRAILER = b'0f\r\n{"inputs": "a"}\r\n0\r\ncontent-type: application/json\r\n\r\n'


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"", 408, id="nothing arrives"),
        pytest.param(b"POST /em", 408, id="half a line"),
        pytest.param(HEAD, 408, id="half of the headers"),
        pytest.param(HEAD + b"content-length: 100\r\n\r\n{", 408, id="half a body"),
        pytest.param(HEAD + b"x: " + b"y" * 5000, 431, id="headers without end"),
        pytest.param(b"\x16\x03\x01 tls\r\n\r\n", 400, id="no HTTP"),
        pytest.param(HEAD + b"content-length: 1000000000000\r\n\r\n {", 413, id="refused, and never late"),
        pytest.param(CHUNKED + SMALL_CHUNKS, 200, id="small chunks are no chunk extensions"),
        pytest.param(UNTYPED + TRAILER, 415, id="a trailer is no header"),
    ],
)
def test_what_is_sent_has_one_answer(hasty, clock, sent, status):
    with hasty.connect() as connection:
        connection.sendall(sent)
        clock.move(0.31 if status == 408 else 0.29)
        found = everything(connection)
    assert found.startswith(b"HTTP/1.1 %d " % status)
    assert found.count(b"HTTP/1.1 ") == 1


def test_a_client_that_sends_a_byte_now_and_then_is_given_up_too(hasty, clock):
    with hasty.connect() as connection:
        connection.sendall(HEAD + b"content-length: 100\r\n\r\n")
        for _ in range(4):
            connection.sendall(b" ")
            clock.move(0.1)
        assert connection.recv(12) == b"HTTP/1.1 408"


def test_a_second_request_has_its_own_time(hasty, clock):
    with hasty.connect() as connection:
        for _ in range(3):
            connection.sendall(WHOLE[:9])
            clock.move(0.2)  # together longer than a request may take
            connection.sendall(WHOLE[9:])
            found = b""
            while not found.endswith(b"]]"):
                found += connection.recv(65536)
            assert found.startswith(b"HTTP/1.1 200")
        connection.sendall(WHOLE[:-1])
        clock.move(0.31)
        assert everything(connection).startswith(b"HTTP/1.1 408 ")


def test_a_request_that_has_arrived_may_be_computed_for_longer(hasty, clock, monkeypatch):
    model = hasty.service.model
    embed = model.embed
    monkeypatch.setattr(model, "embed", lambda *arguments: (clock.move(0.6), embed(*arguments))[1])
    assert hasty.post("/embed", {"inputs": "a"}).status == 200


JSON = {"content-type": "application/json"}


def by_urllib(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=WAIT)
    return caught.value.code, caught.value.read()


def by_httpx(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    answer = httpx.post(url, content=body, headers=headers, timeout=WAIT)
    return answer.status_code, answer.content


def send_for_ever(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 65536)


@pytest.fixture
def crowded():
    with serving(rate=50_000.0, max_connections=3) as server, contextlib.ExitStack() as held:
        for _ in range(3):
            connection = held.enter_context(server.connect())
            connection.sendall(WHOLE)
            assert connection.recv(12) == b"HTTP/1.1 200"
        yield server


@pytest.mark.parametrize("post", [by_urllib, by_httpx])
def test_a_client_over_the_bound_of_connections_reads_why_and_when_to_come_back(crowded, monkeypatch, post):
    """Also once the request was sent, which a closed connection would have reset; not later than it should."""
    monkeypatch.setattr(type(crowded.service.engine.queue), "wait", 6.5)
    for _ in range(3):
        status, said = post(crowded.url + "/embed", b'{"inputs": "%s"}' % (b"a" * 100_000), JSON)
        assert (status, json.loads(said)["error"]["type"]) == (503, "server_error")
        assert b"has 3 connections: try again in 7 s, or start it with more --max-connections" in said
    answer = crowded.get("/health")
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")


def test_connections_of_clients_that_stay_over_the_bound_are_bounded(crowded):
    more = [crowded.connect() for _ in range(8)]
    found = [everything(each) for each in more]  # each is answered and ended
    assert {each[:12] for each in found} == {b"HTTP/1.1 503"}
    with crowded.connect() as connection:
        assert everything(connection).startswith(b"HTTP/1.1 503")
        connection.settimeout(WAIT)
        with pytest.raises(ConnectionError):
            send_for_ever(connection)
    for each in more:
        each.close()


@pytest.mark.slow
def test_a_client_that_does_not_read_is_cut_off(hasty):
    body = ('{"inputs": [' + '"a", ' * 2047 + '"a"]}').encode()  # an answer that no buffer of the system holds
    with hasty.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request("/embed", body))
        until(lambda: hasty.service.metrics.value("te_embed_success") >= 2048 and not hasty.service.active)


@pytest.mark.parametrize(
    ("start", "more"), [(b"0\r\n", b"x-y: z\r\n"), (b"0\r\nx: ", b"yyyyyyyy"), (b"1;a=", b"bbbbbbbb")],
    ids=["trailers", "one trailer", "chunk extension"],
)  # fmt: skip
def test_trailers_and_chunk_extensions_that_do_not_end_are_refused(hasty, start, more):
    with hasty.connect() as connection:
        connection.sendall(CHUNKED + start)
        time.sleep(0.05)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(more * 1000)
        assert everything(connection).startswith(b"HTTP/1.1 431 ")
    until(lambda: not hasty.service.active)  # its route has nothing to wait for


@pytest.fixture(scope="module")
def usual():
    with serving(rate=50_000.0) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("post", [by_urllib, by_httpx, None])
def test_a_client_that_sends_too_much_reads_the_refusal(usual, post):
    """None: http.client."""
    body = b'{"inputs": "' + b"a" * 17_000_000 + b'"}'
    for _ in range(3):
        status, said = post(usual.url + "/embed", body, JSON) if post else usual.ask("POST", "/embed", raw=body)[::2]
        assert status == 413
        assert b"the body is larger than 16777216 bytes" in said


def test_a_refused_body_is_read_for_a_while_and_not_for_ever(usual, monkeypatch):
    monkeypatch.setattr(protocol, "LINGER", 1_000_000)
    with usual.connect() as connection:
        connection.sendall(HEAD + b"content-length: 1000000000000\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 413"
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 2**30:
                sent += connection.send(b" " * 65536)
    assert 500_000 < sent < 2**30


@pytest.mark.slow
def test_what_is_no_http_is_counted_and_logged_once_with_its_sender(caplog):
    with serving(rate=50_000.0) as server, caplog.at_level(logging.WARNING):
        for _ in range(20):
            with server.connect() as connection:
                connection.sendall(b"\x16\x03\x01 tls\r\n\r\n")
                assert everything(connection).startswith(b"HTTP/1.1 400 ")
        with server.connect() as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert server.service.metrics.value("te_request_failure", err="http") == 20
    lines = [record.getMessage() for record in caplog.records if record.name in ("fastflow.serve", "uvicorn.error")]
    assert len(lines) == 1
    assert lines[0].startswith("1 requests since the last such line were not HTTP; this one is from 127.0.0.1 port ")
