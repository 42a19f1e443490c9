"""Ten thousand connections to ``fastflow serve``, and whether those that ask are answered meanwhile.

    ulimit -n 20000; python tests/faults/connections.py --count 10000

Most connections are idle or stop in the middle of their headers or body; a few clients ask all the while. Every answer
must be right, and every connection without a whole request ended by the server. Then keys are guessed: each guess
must be refused, whatever its length and however much of it is right, in the same time. Exit code 1 for anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from load import KEY, MIB, TEXTS, head

import fastflow

from support.servers import serving_process

FILES = 400  # of each process, besides connections
SPARE = 100  # connections of the clients that ask
AT_ONCE = 500  # opened at a time
PATIENCE = 120  # seconds until the server has ended every connection that sends no whole request
LEVEL = 1.1  # largest ratio of the times of two kinds of wrong keys


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(port: int, count: int) -> list[Streams]:
    """``count`` connections: a third silent, a third in their headers, a third in their body."""
    starts = (b"", b"POST /embed HTTP/1.1\r\nhost: a\r\nx: ", head("/embed", 1000, KEY) + b'{"inputs": ')
    found: list[Streams] = []

    async def one(i: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(starts[i % 3])
        found.append((reader, writer))

    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(one(i) for i in range(first, min(first + AT_ONCE, count))))
    return found


async def ask(port: int, body: bytes, key: str = KEY) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head("/embed", len(body), key) + body)
    answer = await reader.read()
    writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    return int(top.split(b" ", 2)[1]), rest


async def asked(port: int, seconds: float, vectors: np.ndarray) -> tuple[list[float], list[str]]:
    """The seconds of requests that four clients make in turn, and what was wrong."""
    taken, faults, end = [], [], time.monotonic() + seconds

    async def client(number: int) -> None:
        row = number
        while time.monotonic() < end:
            began = time.monotonic()
            status, body = await ask(port, json.dumps({"inputs": [TEXTS[row % len(TEXTS)]]}).encode())
            taken.append(time.monotonic() - began)
            if status != 200 or not np.array_equal(np.float32(json.loads(body))[0], vectors[row % len(TEXTS)]):
                faults.append(f"{status} {body[:100]!r}")
            row += 4

    await asyncio.gather(*(client(number) for number in range(4)))
    return taken, faults


async def guessed(port: int, count: int) -> tuple[dict[str, float], list[str]]:
    """Seconds of the fastest tenth of the refusals by the kind of wrong key, asked in turns, and what was wrong."""
    kinds = {"first letter": "#" + KEY[1:], "last letter": KEY[:-1] + "#", "short": "a", "long": KEY * 20}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    faults = []
    for _ in range(count // len(kinds)):
        for kind, key in kinds.items():
            began = time.perf_counter()
            status, _ = await ask(port, b'{"inputs": "a"}', key)
            taken[kind].append(time.perf_counter() - began)
            if status != 401:
                faults.append(f"a wrong key: {status}")
    return {kind: float(np.quantile(times, 0.1)) for kind, times in taken.items()}, faults  # the rest waits for others


async def run(port: int, pid: int, count: int, guesses: int) -> list[str]:
    def resident() -> float:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096 / MIB

    with fastflow.Runtime() as runtime:
        vectors = runtime.encode(TEXTS, normalize_embeddings=True)
    alone, faults = await asked(port, 5, vectors)
    before, began = resident(), time.monotonic()
    streams = await opened(port, count)
    print(f"{len(streams)} connections opened in {time.monotonic() - began:.1f} s", flush=True)
    taken, wrong = await asked(port, 10, vectors)
    faults += wrong
    full = resident()
    ends = asyncio.gather(*(reader.read() for reader, _ in streams))
    done, _ = await asyncio.wait([ends], timeout=PATIENCE)
    if not done:
        faults.append("slow connections were not ended")
    for _, writer in streams:
        writer.transport.abort()
    await asyncio.sleep(2)
    print(f"memory: {before:.0f} MiB before, {full:.0f} with all, {resident():.0f} after; a connection takes "
          f"{(full - before) * 1024 / count:.1f} KiB")  # fmt: skip
    for what, times in (("alone", alone), (f"beside {count}", taken)):
        low, high = np.quantile(times, [0.5, 0.99]) * 1e3
        print(f"{len(times)} requests {what}: median {low:.1f} ms, p99 {high:.1f} ms")
    found, wrong = await guessed(port, guesses)
    ratio = found["first letter"] / found["last letter"]
    print(
        f"{guesses} wrong keys, ms of the fastest tenth: "
        + ", ".join(f"{kind} {each * 1e3:.2f}" for kind, each in found.items())
    )
    if not 1 / LEVEL <= ratio <= LEVEL:
        faults.append(f"keys wrong in the first letter take {ratio:.2f} times those wrong in the last")
    return faults + wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--guesses", type=int, default=10_000)
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = min(given.count, most - FILES - SPARE)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "keys").write_text(KEY)
        options = ("--api-key-file", "keys", "--max-connections", count + SPARE)
        with serving_process(*options, folder=Path(folder)) as server:
            threading.Thread(target=server.process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
            faults = asyncio.run(run(server.port, server.process.pid, count, given.guesses))
            if server.process.poll() is not None:
                faults.append(f"the server ended with {server.process.returncode}")
    for fault in faults[:10]:
        print(f"fault: {fault}")
    print(f"{count} connections, {given.guesses} guesses; {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
