"""Mixed load on ``fastflow serve``: every request has its answer, and memory stays flat.

A round lasts ten minutes, the first 30 seconds. Clients of every kind run at once: texts and lists, with the Runtime's
vectors to the bit; wrong keys; bodies that are no requests; clients that hang up, or send a byte a second; floods.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import numpy as np
from clients import KEY, TEXTS, ask, embed_here, measure_memory, serve, write_head
from harness import Finding

FLAT = 32  # MiB by which the last quarter of the samples may be above the second
RATE = 25  # clients a second
MALFORMED = (
    b"{", b"", b"[]", b"null", b'{"inputs": 1}', b'{"inputs": [[1]]}', b'{"inputs": "a", "inputs": {}}', b"\xff\xfe",
    b'{"inputs": "\\ud800"}', b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"texts": ["a"]}', b"NaN",
)  # fmt: skip
WRONG = ("", "wrong", KEY[:-1], KEY + "x", KEY.upper(), "Bearer", "\x7f")
PATIENCE = 90.0  # seconds for any one client


class Load:
    """The clients of one round."""

    def __init__(self, port: int, vectors: np.ndarray, rng: random.Random, counts: Counter[str]) -> None:
        self.port, self.vectors, self.rng, self.counts = port, vectors, rng, counts
        self.faults: list[str] = []
        self.kinds: dict[Callable[[], Awaitable[None]], int] = {
            self.text: 60, self.list: 6, self.key: 10, self.malformed: 10, self.leave: 8, self.slow: 2, self.flood: 1,
            self.public: 3,
        }  # fmt: skip

    async def one(self) -> None:
        kind = self.rng.choices([*self.kinds], [*self.kinds.values()])[0]
        name = kind.__name__  # type: ignore[attr-defined]
        try:
            await asyncio.wait_for(kind(), PATIENCE)
            self.counts[name] += 1
        except Exception as error:
            self.faults.append(f"{name}: {type(error).__name__}: {error}")

    async def embed(self, rows: list[int]) -> None:
        status, body = await ask(self.port, "/embed", json.dumps({"inputs": [TEXTS[i] for i in rows]}).encode())
        self.counts[f"status {status}"] += 1
        if status == 200 and not np.array_equal(np.float32(json.loads(body)), self.vectors[rows]):
            raise Finding("a vector is not that of the Runtime")
        if status not in (200, 429):
            raise Finding(f"texts: {status} {body[:200]!r}")

    async def text(self) -> None:
        await self.embed([self.rng.randrange(len(TEXTS))])

    async def list(self) -> None:
        await self.embed(self.rng.choices(range(len(TEXTS)), k=self.rng.choice((16, 64, 144))))

    async def flood(self) -> None:
        await asyncio.gather(*(self.text() for _ in range(200)))

    async def key(self) -> None:
        path = self.rng.choice(("/embed", "/v1/embeddings", "/tokenize", "/info", "/v1/models"))
        status, body = await ask(self.port, path, b'{"inputs": "a"}', self.rng.choice(WRONG))
        if status not in (400, 401) or b"[[" in body:
            raise Finding(f"a wrong key: {status} {body[:100]!r}")

    async def malformed(self) -> None:
        status, body = await ask(self.port, "/embed", self.rng.choice(MALFORMED))
        if not 400 <= status < 500 or not json.loads(body)["error"]:
            raise Finding(f"no request: {status} {body[:100]!r}")

    async def leave(self) -> None:
        """Hang up within the request, or before its answer."""
        body = json.dumps({"inputs": TEXTS}).encode()
        sent = write_head("/embed", len(body)) + body
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent[: self.rng.choice((10, 200, len(sent) - 1, len(sent)))])
        with suppress(ConnectionError):
            await writer.drain()
        await asyncio.sleep(self.rng.random() * 0.05)
        writer.transport.abort()

    async def slow(self) -> None:
        """Send a byte a second, of the headers or of the body: the server ends it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        start = write_head("/embed", 1000)
        writer.write(start[:30] if self.rng.random() < 0.5 else start)
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 60:
                writer.write(b" ")
                await writer.drain()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(reader.read(), 1)
                    break
        writer.close()
        if time.monotonic() - began > 45:
            raise Finding("a client of a byte a second was served for over 45 s")

    async def public(self) -> None:
        status, _ = await ask(self.port, self.rng.choice(("/health", "/metrics")), b"", "")
        if status not in (200, 405):
            raise Finding(f"a page: {status}")

    async def run(self, seconds: float, sample: Callable[[], None]) -> None:
        """Begin clients at random times, and wait for the last."""
        began, sampled, running = time.monotonic(), 0.0, set()
        while (now := time.monotonic() - began) < seconds:
            task = asyncio.create_task(self.one())
            running.add(task)
            task.add_done_callback(running.discard)
            if now - sampled > min(5, seconds / 50):
                sampled = now
                sample()
            await asyncio.sleep(self.rng.expovariate(RATE))
        await asyncio.gather(*running)


@contextmanager
def prepare(folder: Path, paths: list[Path]) -> Iterator[Callable[..., None]]:
    memory: list[float] = []
    vectors = embed_here()
    with serve(folder) as server:

        def one(folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
            load = Load(server.port, vectors, rng, counts)
            asyncio.run(load.run(600 if number else 30, lambda: memory.append(measure_memory(server))))
            if load.faults:
                raise Finding("\n".join(load.faults[:10]))

        yield one
    quarters = [float(median(part)) for part in np.array_split(memory, 4)]
    print(f"memory, median of each quarter: {', '.join(f'{q:.1f}' for q in quarters)} MiB; most {max(memory):.1f}")
    if quarters[3] - quarters[1] > FLAT:
        raise Finding(f"memory grew by {quarters[3] - quarters[1]:.0f} MiB")
