"""A server as people write it, to compare with: Starlette and uvicorn in front of ONNX Runtime, batches padded.

TEI's rules: greedy batches without a delay, of whole requests, up to a budget of padded tokens; one thread computes.
``python -m fastflow.bench.peers.serve_onnx FILE.onnx TOKENIZER.json THREADS MAX_LENGTH`` prints its port and serves.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

BUDGET = 1024  # padded tokens of a batch: some 100 ms of BERT-base, as fastflow's server has it
WAITING = 512  # requests


class Peer:
    """The model and the requests that wait for it."""

    def __init__(self, model: str, tokenizer: str, threads: int, max_length: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        from fastflow.bench.peers.onnx import session_options

        options = session_options(threads)
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(tokenizer)
        self._tokenizer.enable_truncation(max_length)
        self._tokenizer.no_padding()
        self.waiting: deque[tuple[list[list[int]], asyncio.Future[Any]]] = deque()
        self.wake = asyncio.Event()

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]

    def compute(self, rows: list[list[int]]) -> Any:
        """(B, D) of padded rows."""
        lengths = np.array([len(row) for row in rows])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        ids = np.zeros_like(mask)
        ids[mask.astype(bool)] = np.concatenate(rows)
        z = self._session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        return z / np.linalg.norm(z, axis=1, keepdims=True)

    async def work(self) -> None:
        """Batch after batch, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self.wake.wait()
            batch: list[tuple[int, asyncio.Future[Any]]] = []
            rows: list[list[int]] = []
            longest = 0
            while self.waiting:
                new, answer = self.waiting[0]
                longest = max(longest, *map(len, new))
                if batch and longest * (len(rows) + len(new)) > BUDGET:
                    break
                self.waiting.popleft()
                if not answer.done():
                    batch.append((len(new), answer))
                    rows += new
            if not self.waiting:
                self.wake.clear()
            if not rows:
                continue
            z, start = await loop.run_in_executor(None, self.compute, rows), 0
            for count, answer in batch:
                if not answer.done():
                    answer.set_result(z[start : start + count])
                start += count


def make_app(peer: Peer) -> Any:
    """The application: POST /embed alone."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def embed(request: Request) -> Response:
        if len(peer.waiting) >= WAITING:
            return JSONResponse({"error": "overloaded"}, 429)
        inputs = json.loads(await request.body())["inputs"]
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(None, peer.tokens, [inputs] if isinstance(inputs, str) else inputs)
        answer = loop.create_future()
        peer.waiting.append((rows, answer))
        peer.wake.set()
        return JSONResponse((await answer).tolist())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.ensure_future(peer.work())
        yield
        task.cancel()

    return Starlette(routes=[Route("/embed", embed, methods=["POST"])], lifespan=lifespan)


async def serve(model: str, tokenizer: str, threads: int, max_length: int) -> None:
    """Serve until a signal."""
    import uvicorn

    app = make_app(Peer(model, tokenizer, threads, max_length))
    server = uvicorn.Server(uvicorn.Config(app, port=0, http="httptools", log_config=None, access_log=False))
    task = asyncio.ensure_future(server.serve())
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    if server.started:
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await task


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
