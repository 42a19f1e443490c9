"""HTTP/1.1 on one connection, with limits that uvicorn leaves open: slow clients, long headers, many connections."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastflow.serve.settings import Settings


def protocol(settings: Settings) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with the limits of ``settings``."""

    class Limited(HttpToolsProtocol):
        _arriving: asyncio.TimerHandle | None = None  # until the request has arrived whole
        _unread: asyncio.TimerHandle | None = None  # until the client reads on
        _head = 0  # bytes of a request's headers so far; -1 behind them

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._arrives()
            if len(self.connections) > settings.max_connections:
                self._refuse(b"503 Service Unavailable", b"retry-after: 1\r\n")

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._head >= 0:
                self._head += len(data)
            super().data_received(data)
            if self._head > settings.max_header:
                self._refuse(b"431 Request Header Fields Too Large")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._arriving is None:
                self._arrives()

        def on_headers_complete(self) -> None:
            self._head = -1
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._head = 0
            if self._arriving is not None:
                self._arriving.cancel()
                self._arriving = None
            super().on_message_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(settings.send, self.transport.abort)

        def resume_writing(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
            super().resume_writing()

        def _arrives(self) -> None:
            self._arriving = self.loop.call_later(settings.receive, self._refuse, b"408 Request Timeout")

        def _cancel(self) -> None:
            for timer in (self._arriving, self._unread):
                if timer is not None:
                    timer.cancel()

        def _refuse(self, status: bytes, header: bytes = b"") -> None:
            """Close the connection, with an answer where none has begun."""
            if not self.transport.is_closing():
                if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
                    self.transport.write(
                        b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n" + header + b"\r\n"
                    )
                self.transport.close()

    return Limited
