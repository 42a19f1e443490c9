"""The peer's server, with sums in the place of ONNX Runtime."""

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
    sent, scope = (
        [],
        {"type": "http", "method": "POST", "path": "/embed", "headers": [], "query_string": b"", "root_path": ""},
    )

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


def answers(*bodies, queued=0):
    """The answers to requests at one time, and the sizes of the batches; ``queued``: how many wait already."""

    async def run():
        peer = Sums()
        peer.waiting.extend([([[1]], asyncio.get_running_loop().create_future())] * queued)
        app, task = serve_onnx.make_app(peer), None if queued else asyncio.ensure_future(peer.work())
        found = await asyncio.wait_for(asyncio.gather(*(ask(app, body) for body in bodies)), 20)
        if task:
            task.cancel()
        return found, peer.batches

    return asyncio.run(run())


def test_requests_get_their_own_vectors():
    found, batches = answers(b'{"inputs": ["a", "bcd"]}', b'{"inputs": "ab"}')
    assert found == [(200, b"[[1.0],[3.0]]"), (200, b"[[2.0]]")]
    assert sum(batches) == 3


def test_a_batch_keeps_to_its_budget_when_padded():
    text = "x" * (serve_onnx.BUDGET // 2)
    assert max(answers(*[f'{{"inputs": "{text}"}}'.encode()] * 6)[1]) <= 2


def test_a_full_queue_is_429():
    ((status, _),), _ = answers(b"{}", queued=serve_onnx.WAITING)
    assert status == 429
