"""Clients that are slow, and those that send too much before a route sees them, by a raw socket."""

from __future__ import annotations

import socket
import time

import pytest
from servers import WAIT, serving

HEAD = b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def hasty():
    with serving(rate=50_000.0, receive=0.3, send=0.5, max_header=4096, max_connections=3) as server:
        yield server


def connect(server) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=WAIT)


def everything(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


@pytest.mark.parametrize(
    "start", [b"", b"POST /em", HEAD, HEAD + b"content-length: 100\r\n\r\n{"], ids=["nothing", "line", "head", "body"]
)
def test_a_request_that_does_not_arrive_is_given_up(hasty, start):
    with connect(hasty) as connection:
        connection.sendall(start)
        assert everything(connection).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_sends_a_byte_now_and_then_is_given_up_too(hasty):
    with connect(hasty) as connection:
        connection.sendall(HEAD + b"content-length: 100\r\n\r\n")
        connection.settimeout(0.05)
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            connection.sendall(b" ")
            try:
                found = connection.recv(12)
                break
            except TimeoutError:
                continue
        assert found == b"HTTP/1.1 408"


def test_a_second_request_has_its_own_time(hasty):
    body = b'{"inputs": "a"}'
    whole = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    with connect(hasty) as connection:
        for _ in range(3):
            time.sleep(0.15)  # together longer than a request may take
            connection.sendall(whole)
            found = b""
            while not found.endswith(b"]]"):
                found += connection.recv(65536)
            assert found.startswith(b"HTTP/1.1 200")
        connection.sendall(whole[:-1])
        assert everything(connection).startswith(b"HTTP/1.1 408 ")


def test_a_request_that_has_arrived_may_be_computed_for_longer(hasty, monkeypatch):
    model = hasty.service.model
    embed = model.embed
    monkeypatch.setattr(model, "embed", lambda *arguments: (time.sleep(0.6), embed(*arguments))[1])
    assert hasty.post("/embed", {"inputs": "a"}).status == 200


def test_headers_that_do_not_end_are_refused(hasty):
    with connect(hasty) as connection:
        connection.sendall(HEAD + b"x: " + b"y" * 5000)
        assert everything(connection).startswith(b"HTTP/1.1 431 ")


def test_connections_are_bounded(hasty):
    held = [connect(hasty) for _ in range(3)]
    try:
        with connect(hasty) as connection:
            answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
    finally:
        for each in held:
            each.close()


def test_a_client_that_does_not_read_is_cut_off(hasty):
    body = ('{"inputs": [' + '"a", ' * 2047 + '"a"]}').encode()  # an answer that no buffer of the system holds
    with connect(hasty) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        end = time.monotonic() + WAIT
        while hasty.service.metrics.value("te_embed_success") < 2048 or hasty.service.active:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_what_is_no_http_is_400(hasty):
    with connect(hasty) as connection:
        connection.sendall(b"\x16\x03\x01 tls\r\n\r\n")
        assert everything(connection).startswith(b"HTTP/1.1 400 ")
