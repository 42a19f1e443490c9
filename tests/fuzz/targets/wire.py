"""A connection to the server: any bytes in any pieces, then its end. Bytes: pieces, with SPLIT between them."""

import asyncio
import logging
import re
from typing import Any

import uvicorn
from harness import Finding, load
from uvicorn.server import ServerState

from fastflow.serve.protocol import make_protocol

from support.routes import POSTS
from support.servers import request

SPLIT = b"\xff\xfe"
SHORT, WAIT = 0.05, 20  # seconds: for an answer, and until everything of a connection has ended
STATUS = re.compile(rb"HTTP/1\.1 (\d+) ")
FAILED = (b"424", b"500")
http = load("http")
loop = http.SERVER.loop
service = http.SERVER.app.state.service
kind = make_protocol(service)
config = uvicorn.Config(
    http.SERVER.app, http=kind, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False
)
config.load()
logging.disable(logging.CRITICAL)  # lines about requests that are no HTTP


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written, self.closing = bytearray(), False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 80)}.get(name, default)

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def write_eof(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


async def talk(pieces: list[bytes]) -> bytes:
    state, wire = ServerState(), Wire()
    connection = kind(config, state, {}, loop)
    connection.connection_made(wire)
    for piece in pieces:
        if not wire.closing:
            connection.data_received(piece)
        await asyncio.sleep(0)
    if state.tasks:
        await asyncio.wait(state.tasks, timeout=SHORT)
    connection.connection_lost(None)
    if state.tasks and (await asyncio.wait(state.tasks, timeout=WAIT))[1]:
        raise Finding("a task outlives its connection")
    if state.connections:
        raise Finding("a connection that has ended is counted")
    return bytes(wire.written)


def one(data: bytes) -> None:
    written = loop.run_until_complete(talk(data.split(SPLIT)))
    if written and not written.startswith(b"HTTP/1."):
        raise Finding(f"it answers {written[:100]!r}")
    if any(status in FAILED for status in STATUS.findall(written)):
        raise Finding(f"it fails: {written[:300]!r}")


def seeds() -> list[bytes]:
    requests = [request(path, b'{"input": "a", "inputs": "a"}') for path in POSTS]
    chunked = (
        b'POST /embed HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\n{"inp\r\n0\r\nx: y\r\n\r\n'
    )
    get = b"GET /info HTTP/1.1\r\nhost: a\r\n\r\n"
    return [*requests, chunked, get, get + get, SPLIT.join([requests[0][:30], requests[0][30:]]), b"GET /\r\n\r\n"]
