"""The peer's server, with sums in the place of ONNX Runtime."""

from __future__ import annotations

import asyncio
from collections import deque

import httptools  # noqa: F401 (the extra is there)
import numpy as np
from starlette.applications import Starlette

from fastflow.bench.peers import serve_onnx


class Sums(serve_onnx.Peer):
    """The vector of a text is its length."""

    def __init__(self) -> None:
        self.waiting, self.wake, self.batches = deque(), asyncio.Event(), []

    def tokens(self, texts):
        return [list(text.encode()) for text in texts]

    def compute(self, rows):
        self.batches.append(len(rows))
        return np.array([[len(row)] for row in rows], np.float32)


async def ask(app: Starlette, body: bytes) -> tuple[int, bytes]:
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/embed", "headers": [], "query_string": b"", "root_path": ""}
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


def with_peer(test):
    async def run():
        peer = Sums()
        app = serve_onnx.make_app(peer)
        task = asyncio.ensure_future(peer.work())
        try:
            await asyncio.wait_for(test(peer, app), 20)
        finally:
            task.cancel()

    return lambda: asyncio.run(run())


@with_peer
async def test_requests_get_their_own_vectors(peer, app):
    answers = await asyncio.gather(ask(app, b'{"inputs": ["a", "bcd"]}'), ask(app, b'{"inputs": "ab"}'))
    assert answers == [(200, b"[[1.0],[3.0]]"), (200, b"[[2.0]]")]
    assert sum(peer.batches) == 3


@with_peer
async def test_a_batch_keeps_to_its_budget_when_padded(peer, app):
    text = "x" * (serve_onnx.BUDGET // 2)
    await asyncio.gather(*(ask(app, f'{{"inputs": "{text}"}}'.encode()) for _ in range(6)))
    assert max(peer.batches) <= 2


@with_peer
async def test_a_full_queue_is_429(peer, app):
    peer.waiting.extend([([[1]], asyncio.get_running_loop().create_future())] * serve_onnx.WAITING)
    assert (await ask(app, b"{}"))[0] == 429
