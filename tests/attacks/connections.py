"""Ten thousand connections to ``fastflow serve``, and guessed keys: ulimit -n 20000.

The first round opens 600 connections, the second 2,500, later ones 10,000, or as many as the limit of open files
allows. A third is silent, a third stops in its headers, a third in its body; four clients ask meanwhile. Every answer
must be right, and the server must end every connection without a whole request. Then each guessed key must be refused,
in the same time whether it is wrong in its first or its last letter.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from clients import KEY, TEXTS, ask, embed_here, measure_memory, serve, write_head
from harness import Finding

COUNTS = (600, 2500, 10_000)
GUESSES = 2000
SPARE = 500  # open files of either process for other uses, and connections of clients that ask
AT_ONCE = 500  # connections opened at a time
PATIENCE = 120  # seconds until the server has ended every connection that sends no whole request
LEVEL = 1.1  # largest ratio of the times of two kinds of wrong keys
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
KINDS = {"first letter": "#" + KEY[1:], "last letter": KEY[:-1] + "#", "short": "a", "long": KEY * 20}


async def open_many(port: int, count: int) -> list[Streams]:
    starts = (b"", b"POST /embed HTTP/1.1\r\nhost: a\r\nx: ", write_head("/embed", 1000) + b'{"inputs": ')
    found: list[Streams] = []

    async def one(i: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(starts[i % 3])
        found.append((reader, writer))

    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(one(i) for i in range(first, min(first + AT_ONCE, count))))
    return found


async def ask_for(port: int, seconds: float, vectors: np.ndarray) -> list[float]:
    """Return the milliseconds of requests that four clients make in turn."""
    taken, end = [], time.monotonic() + seconds

    async def client(row: int) -> None:
        while time.monotonic() < end:
            began, at = time.monotonic(), row % len(TEXTS)
            status, body = await ask(port, "/embed", json.dumps({"inputs": [TEXTS[at]]}).encode())
            taken.append((time.monotonic() - began) * 1e3)
            if status != 200 or not np.array_equal(np.float32(json.loads(body))[0], vectors[at]):
                raise Finding(f"{status} {body[:100]!r}")
            row += 4

    await asyncio.gather(*(client(number) for number in range(4)))
    return taken


async def guess_keys(port: int) -> dict[str, float]:
    """Return the milliseconds of the fastest tenth of the refusals, by the kind of wrong key, asked in turns."""
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(GUESSES // len(KINDS)):
        for kind, key in KINDS.items():
            began = time.perf_counter()
            status, _ = await ask(port, "/embed", b'{"inputs": "a"}', key)
            taken[kind].append((time.perf_counter() - began) * 1e3)
            if status != 401:
                raise Finding(f"a wrong key: {status}")
    return {kind: float(np.quantile(times, 0.1)) for kind, times in taken.items()}


async def run(server, count: int, vectors: np.ndarray) -> None:
    alone, before = await ask_for(server.port, 5, vectors), measure_memory(server)
    streams = await open_many(server.port, count)
    taken, full = await ask_for(server.port, 10, vectors), measure_memory(server)
    done, _ = await asyncio.wait([asyncio.gather(*(reader.read() for reader, _ in streams))], timeout=PATIENCE)
    for _, writer in streams:
        writer.transport.abort()
    if not done:
        raise Finding("slow connections were not ended")
    print(f"{count} connections: {before:.0f} MiB before, {full:.0f} with all")
    for name, times in (("alone", alone), (f"with {count}", taken)):
        print(f"{len(times)} requests {name}: median {np.median(times):.1f} ms, p99 {np.quantile(times, 0.99):.1f} ms")
    found = await guess_keys(server.port)
    print(f"{GUESSES} wrong keys, ms: " + ", ".join(f"{kind} {each:.2f}" for kind, each in found.items()), flush=True)
    ratio = found["first letter"] / found["last letter"]
    if not 1 / LEVEL <= ratio <= LEVEL:
        raise Finding(f"keys wrong in the first letter take {ratio:.2f} times as long as in the last")


@contextmanager
def prepare(folder: Path, paths: list[Path]) -> Iterator[Callable[..., None]]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    largest, vectors = min(COUNTS[-1], most - SPARE), embed_here()
    with serve(folder, "--max-connections", largest + SPARE) as server:

        def one(folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
            count = min(COUNTS[min(number, 2)], largest)
            counts["connections"] += count
            asyncio.run(run(server, count, vectors))

        yield one
