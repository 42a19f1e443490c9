"""HTTP/1.1 with limits that uvicorn lacks."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastflow.serve.requests import refuse_for_now
from fastflow.serve.service import Service

LINGER = 64 * 2**20  # bytes of a refused body, read and dropped
SECONDS = 60.0  # between two log lines of ``RateLimitedLog``
INVALID = "Invalid HTTP request received."

log = logging.getLogger("fastflow.serve")


def make_protocol(service: Service) -> type[HttpToolsProtocol]:
    """Make uvicorn's protocol with the limits of ``service``."""
    settings, metrics, noted = service.settings, service.metrics, RateLimitedLog()

    class Limited(HttpToolsProtocol):
        _arriving: asyncio.TimerHandle | None = None  # timer for the whole request to arrive
        _unread: asyncio.TimerHandle | None = None  # timer for the client to read on
        _in_body = False  # whether the headers have ended, but not the body
        _loose = 0  # bytes of headers, or of chunk extensions and trailers since the last body piece
        _left: int | None = None  # bytes of a refused request still to read; None: not refused
        _deaf = False  # whether these bytes are left unparsed

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_request()
            if len(self.connections) > settings.max_connections:
                self._refuse_connection()

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
                self._refuse_headers()

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

        def _refuse_connection(self) -> None:
            """Refuse, and read the request: else the client could not read the answer."""
            fault, wait = f"the server has {settings.max_connections} connections", service.engine.queue.wait
            refusal = refuse_for_now("crowded", fault, wait, ", or start it with more --max-connections")
            refused, self._deaf = refusal.make_response("/v1/"), True
            head = "".join(f"{name}: {refused.headers[name]}\r\n" for name in ("retry-after", "content-type"))
            self._answer(b"503 Service Unavailable", head.encode(), bytes(refused.body))
            metrics.count("te_request_failure", err="crowded")
            if len(self.connections) > 2 * settings.max_connections:  # else clients that send nothing would stay
                self.transport.close()
            else:
                self._linger()

        def _refuse_headers(self) -> None:
            self._answer(b"431 Request Header Fields Too Large")
            self._deaf = True
            if self._in_body and self.cycle is not None:  # ends its route, which waits for the body
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self._linger()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._arriving is None:
                self._expect_request()

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._in_body:  # headers after the body are dropped
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
            if self._in_body:
                self._linger()
            else:
                self.transport.close()

        def _linger(self) -> None:
            """Stop writing and read on: after a reset the client could not read the answer."""
            if self._left is None and not self.transport.is_closing():
                self._left = LINGER
                self.transport.write_eof()
                self.flow.resume_reading()

        def _expect_request(self) -> None:
            self._arriving = self.loop.call_later(settings.receive, self._time_out)

        def _time_out(self) -> None:
            self._answer(b"408 Request Timeout")
            self.transport.close()

        def _cancel(self) -> None:
            for timer in (self._arriving, self._unread):
                if timer is not None:
                    timer.cancel()

        def _answer(self, status: bytes, header: bytes = b"", body: bytes = b"") -> None:
            cycle = self.cycle
            begun = cycle and (cycle.response_started if self._in_body else not cycle.response_complete)
            if not (begun or self._left is not None or self.transport.is_closing()):
                length = f"\r\nconnection: close\r\ncontent-length: {len(body)}\r\n".encode()
                self.transport.write(b"HTTP/1.1 " + status + length + header + b"\r\n" + body)

    return Limited


class Lingering:
    """The transport of one answer; ``close`` first reads the rest of the request."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.write, self.is_closing = connection.transport.write, connection.transport.is_closing

    def close(self) -> None:
        self._connection.end()


class RateLimitedLog:
    """Logs requests that are not HTTP, at most once in SECONDS."""

    def __init__(self) -> None:
        self._count, self._next = 0, 0.0

    def __call__(self, client: tuple[str, int] | None) -> None:
        self._count += 1
        if time.monotonic() >= self._next:
            peer = f"{client[0]} port {client[1]}" if client and client[0] else "the Unix socket"
            log.warning("%d requests since the last such line were not HTTP; this one is from %s", self._count, peer)
            self._count, self._next = 0, time.monotonic() + SECONDS
