"""Mixed load on ``fastflow serve`` for as long as asked, and whether its memory stays flat.

    python tests/faults/load.py --minutes 60 --rate 40

Clients of every kind at once: texts and lists, whose vectors must be those of the Runtime to the bit; wrong keys, which
must be refused; bodies that are no requests; clients that hang up before their answer, send a byte a second, or open
with many others at once. Every request must have its answer, or end as its kind ends. Exit code 1 for a fault, or if
the last quarter of the samples of memory has a median more than 32 MB above that of the second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

import fastflow

from support.servers import serving_process

MIB = 2**20
FLAT = 32 * MIB
KEY = "right-key-of-this-test"
TEXTS = [f"{who} {what} near the {where} {n}" for who in ("the dog", "a bird", "nobody") for what in ("runs", "sings")
         for where in ("river", "market", "old house") for n in range(8)]  # fmt: skip
MALFORMED = (
    b"{", b"", b"[]", b"null", b'{"inputs": 1}', b'{"inputs": [[1]]}', b'{"inputs": "a", "inputs": {}}', b"\xff\xfe",
    b'{"inputs": "\\ud800"}', b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"texts": ["a"]}', b"NaN",
)  # fmt: skip
WRONG = ("", "wrong", KEY[:-1], KEY + "x", KEY.upper(), "Bearer", "\x7f")
PATIENCE = 90.0  # seconds for any one client


class Load:
    """Clients of one server, and what came of them."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.rng = port, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        with fastflow.Runtime() as runtime:
            self.vectors = runtime.encode(TEXTS, normalize_embeddings=True)
        self.kinds: dict[Callable[[], Awaitable[None]], int] = {
            self.text: 60, self.list: 6, self.key: 10, self.malformed: 10, self.leaves: 8, self.slow: 2, self.flood: 1,
            self.public: 3,
        }  # fmt: skip

    async def one(self) -> None:
        kind = self.rng.choices([*self.kinds], [*self.kinds.values()])[0]
        name = kind.__name__  # type: ignore[attr-defined]
        try:
            await asyncio.wait_for(kind(), PATIENCE)
            self.counts[name] += 1
        except Exception as error:
            self.fault(f"{name}: {type(error).__name__}: {error}")

    def fault(self, what: str) -> None:
        self.faults.append(what)
        print(f"fault: {what}", flush=True)

    async def ask(self, path: str, body: bytes, key: str = KEY) -> tuple[int, bytes]:
        """(status, body) of one request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head(path, len(body), key) + body)
            await writer.drain()
            answer = await reader.read()
            top, _, rest = answer.partition(b"\r\n\r\n")
            return int(top.split(b" ", 2)[1]), rest
        finally:
            writer.close()

    async def embed(self, rows: list[int]) -> None:
        status, body = await self.ask("/embed", json.dumps({"inputs": [TEXTS[i] for i in rows]}).encode())
        self.counts[f"status {status}"] += 1
        if status == 200 and not np.array_equal(np.float32(json.loads(body)), self.vectors[rows]):
            self.fault("a vector is not that of the Runtime")
        elif status not in (200, 429):
            self.fault(f"texts: {status} {body[:200]!r}")

    async def text(self) -> None:
        await self.embed([self.rng.randrange(len(TEXTS))])

    async def list(self) -> None:
        await self.embed(self.rng.choices(range(len(TEXTS)), k=self.rng.choice((16, 64, 144))))

    async def flood(self) -> None:
        """Two hundred at once: each is answered, or told to come again."""
        await asyncio.gather(*(self.text() for _ in range(200)))

    async def key(self) -> None:
        path = self.rng.choice(("/embed", "/v1/embeddings", "/tokenize", "/info", "/v1/models"))
        status, body = await self.ask(path, b'{"inputs": "a"}', self.rng.choice(WRONG))
        if status not in (400, 401) or b"[[" in body:
            self.fault(f"a wrong key: {status} {body[:100]!r}")

    async def malformed(self) -> None:
        status, body = await self.ask("/embed", self.rng.choice(MALFORMED))
        if not 400 <= status < 500 or not json.loads(body)["error"]:
            self.fault(f"no request: {status} {body[:100]!r}")

    async def leaves(self) -> None:
        """Hang up before the answer, somewhere in the request or after it."""
        body = json.dumps({"inputs": TEXTS}).encode()
        sent = head("/embed", len(body), KEY) + body
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent[: self.rng.choice((10, 200, len(sent) - 1, len(sent)))])
        with suppress(ConnectionError):
            await writer.drain()
        await asyncio.sleep(self.rng.random() * 0.05)
        writer.transport.abort()

    async def slow(self) -> None:
        """A byte a second, of the headers or of the body: the server ends it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        start = head("/embed", 1000, KEY)
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
            self.fault("a client of a byte a second was served for over 45 s")

    async def public(self) -> None:
        status, _ = await self.ask(self.rng.choice(("/health", "/metrics")), b"", "")
        if status not in (200, 405):
            self.fault(f"a page: {status}")


def head(path: str, length: int, key: str) -> bytes:
    method = "GET" if path in ("/info", "/v1/models", "/health", "/metrics") else "POST"
    return (
        f"{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode("latin-1")


async def run(load: Load, seconds: float, rate: float, sample: Callable[[], None]) -> None:
    """Begin clients at random times, ``rate`` a second on average, and wait for the last."""
    began, sampled, running = time.monotonic(), 0.0, set()
    while (now := time.monotonic() - began) < seconds:
        task = asyncio.create_task(load.one())
        running.add(task)
        task.add_done_callback(running.discard)
        if now - sampled > min(5, seconds / 50):
            sampled = now
            sample()
        await asyncio.sleep(load.rng.expovariate(rate))
    await asyncio.gather(*running)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=40, help="clients a second")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    memory: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "keys").write_text(KEY)
        with serving_process("--api-key-file", "keys", folder=Path(folder)) as server:
            statm = Path(f"/proc/{server.process.pid}/statm")
            threading.Thread(target=server.process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
            load = Load(server.port, given.seed)

            def sample() -> None:
                memory.append(int(statm.read_text(encoding="ascii").split()[1]) * 4096)

            began = time.monotonic()
            asyncio.run(run(load, given.minutes * 60, given.rate, sample))
            taken = time.monotonic() - began
            if server.process.poll() is not None:
                load.fault(f"the server ended with {server.process.returncode}")
    quarters = [median(part) / MIB for part in np.array_split(memory, 4)]
    if quarters[3] - quarters[1] > FLAT / MIB:
        load.fault(f"memory grew by {quarters[3] - quarters[1]:.0f} MiB")
    print(f"{taken / 60:.1f} minutes; {dict(sorted(load.counts.items()))}; {len(load.faults)} faults")
    print(
        f"memory, median of each quarter: {', '.join(f'{q:.1f}' for q in quarters)} MiB; most {max(memory) / MIB:.1f}"
    )
    return 1 if load.faults else 0


if __name__ == "__main__":
    sys.exit(main())
