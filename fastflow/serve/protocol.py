"""HTTP/1.1 on one connection, with limits that uvicorn leaves open: slow clients, headers, trailers, connections."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastflow.serve.metrics import Metrics
from fastflow.serve.refusals import OPENAI, crowded
from fastflow.serve.settings import Settings

LINGER = 64 * 2**20  # bytes of a body that are read and dropped after its request was refused
SECONDS = 60.0  # between two lines of the log about requests that are not HTTP
INVALID = "Invalid HTTP request received."

log = logging.getLogger("fastflow.serve")


def protocol(settings: Settings, metrics: Metrics, wait: Callable[[], float] = lambda: 0.0) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with the limits of ``settings``; requests that are not HTTP count in ``metrics``.

    ``wait()``: seconds until the requests that wait are answered, and their connections are free.
    """
    noted = Rarely()

    class Limited(HttpToolsProtocol):
        _arriving: asyncio.TimerHandle | None = None  # until the request has arrived whole
        _unread: asyncio.TimerHandle | None = None  # until the client reads on
        _in_body = False  # whether the headers have ended and the body has not
        _loose = 0  # bytes of the headers so far, or since the last piece of the body: chunk extensions and trailers
        _left: int | None = None  # bytes that are still read of a request that was refused; None: it was not
        _deaf = False  # whether they are not parsed either

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._arrives()
            if len(self.connections) > settings.max_connections:
                self._too_many()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._left is not None:
                self._left -= len(data)
                if self._left < 0:
                    self.transport.close()
                if self._left < 0 or self._deaf:
                    return
            self._loose += len(data)
            self._parse(data)
            if self._loose > settings.max_header and not self.transport.is_closing():
                self._too_long()

        def _parse(self, data: bytes) -> None:
            self._unset_keepalive_if_required()
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                pass  # answered as a request without an upgrade
            except httptools.HttpParserError:
                if self._left is None:
                    metrics.count("te_request_failure", err="http")
                    noted(self.client)
                    self.send_400_response(INVALID)
                self.transport.close()

        def _too_many(self) -> None:
            """Refuse a connection; its request arrives all the same, or its client could not read the answer."""
            refused, self._deaf = crowded(settings.max_connections, wait()).response(OPENAI), True
            head = "".join(f"{name}: {refused.headers[name]}\r\n" for name in ("retry-after", "content-type"))
            self._answer(b"503 Service Unavailable", head.encode(), bytes(refused.body))
            metrics.count("te_request_failure", err="crowded")
            if len(self.connections) > 2 * settings.max_connections:  # clients that send nothing stay
                self.transport.close()
            else:
                self._linger()

        def _too_long(self) -> None:
            """Refuse headers, chunk extensions or trailers, and read no more."""
            self._answer(b"431 Request Header Fields Too Large")
            self._deaf = True
            if self._in_body and self.cycle is not None:  # its route waits for the body
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self._linger()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._arriving is None:
                self._arrives()

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._in_body:  # trailers are dropped: no route reads them
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_body, self._loose = True, 0
            super().on_headers_complete()
            self.cycle.transport = Lingering(self)  # type: ignore[assignment]

        def on_chunk_header(self) -> None:
            self._loose = 0

        def on_body(self, body: bytes) -> None:
            self._loose = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._in_body, self._loose = False, 0
            if self._arriving is not None:
                self._arriving.cancel()
                self._arriving = None
            super().on_message_complete()
            if self._left is not None:
                self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(settings.send, self.transport.abort)

        def resume_writing(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
            super().resume_writing()

        def end(self) -> None:
            """Close the connection, after the request has arrived."""
            if self._in_body:
                self._linger()
            else:
                self.transport.close()

        def _linger(self) -> None:
            """Say that nothing more will be sent, and read on: a client that is reset could not read the answer."""
            if self._left is None and not self.transport.is_closing():
                self._left = LINGER
                self.transport.write_eof()
                self.flow.resume_reading()

        def _arrives(self) -> None:
            self._arriving = self.loop.call_later(settings.receive, self._late)

        def _late(self) -> None:
            self._answer(b"408 Request Timeout")
            self.transport.close()

        def _cancel(self) -> None:
            for timer in (self._arriving, self._unread):
                if timer is not None:
                    timer.cancel()

        def _answer(self, status: bytes, header: bytes = b"", body: bytes = b"") -> None:
            """Answer the request that arrives, unless an answer has begun."""
            cycle = self.cycle
            begun = cycle and (cycle.response_started if self._in_body else not cycle.response_complete)
            if not (begun or self._left is not None or self.transport.is_closing()):
                length = f"\r\nconnection: close\r\ncontent-length: {len(body)}\r\n".encode()
                self.transport.write(b"HTTP/1.1 " + status + length + header + b"\r\n" + body)

    return Limited


class Lingering:
    """The transport of one answer, whose ``close`` lets the rest of the request arrive."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.write, self.is_closing = connection.transport.write, connection.transport.is_closing

    def close(self) -> None:
        self._connection.end()


class Rarely:
    """A line of the log about requests that are not HTTP: at most one in SECONDS, with the number since the last."""

    def __init__(self) -> None:
        self._count, self._next = 0, 0.0

    def __call__(self, client: tuple[str, int] | None) -> None:
        self._count += 1
        if time.monotonic() >= self._next:
            peer = f"{client[0]} port {client[1]}" if client and client[0] else "the Unix socket"
            log.warning("%d requests since the last such line were not HTTP; this one is from %s", self._count, peer)
            self._count, self._next = 0, time.monotonic() + SECONDS
