"""Attacks on ``fastflow serve``: mixed load, huge bodies, thousands of connections, and guessed keys.

Rounds take turns. A round of load runs clients of every kind for 30 seconds, later ones for ten minutes: texts and
lists, with the Runtime's vectors to the bit; wrong keys; bodies that are no requests; clients that hang up, or send a
byte a second; floods. Meanwhile 600 connections, later 10,000 (ulimit -n 20000), are silent or stop in their headers
or body: the server must end them. Then wrong keys are timed. A round of huge bodies sends some at once, and streams
that do not end. Memory stays below a bound, and flat. Every answer is right, or refuses in a sentence.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import Finding

import fastflow

from support.servers import Process, serving_process

MIB = 2**20
KEY = "right-key-of-this-test"
TEXTS = [f"{who} {what} near the {where} {n}" for who in ("the dog", "a bird", "nobody") for what in ("runs", "sings")
         for where in ("river", "market", "old house") for n in range(8)]  # fmt: skip
RATE = 25  # clients a second
SECONDS = (30, 600)  # of the first rounds, and of later ones
CONNECTIONS = (600, 10_000)
SPARE = 500  # open files of either process for other uses, and connections of clients that ask
FLAT = 32  # MiB by which the last quarter of the samples may be above the second
PATIENCE = 90.0  # seconds for any one client, and until the server has ended a connection without a request
GUESSES, LEVEL = 500, 1.1  # of each wrong key; largest ratio of the times of two kinds
GUESSED = {"first letter": "#" + KEY[1:], "last letter": KEY[:-1] + "#", "short": "a", "long": KEY * 20}
MALFORMED = (
    b"{", b"", b"[]", b"null", b'{"inputs": 1}', b'{"inputs": [[1]]}', b'{"inputs": "a", "inputs": {}}', b"\xff\xfe",
    b'{"inputs": "\\ud800"}', b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"texts": ["a"]}', b"NaN",
)  # fmt: skip
WRONG = ("", "wrong", KEY[:-1], KEY + "x", KEY.upper(), "Bearer", "\x7f")
BODY = 15_800_000  # bytes of a body, under the limit of 16 MiB
MOST = 640  # MiB of the server; four bodies at once, each with its text at four bytes a character, are 400
GROWTH = 256  # MiB left after a round: what the C library keeps of freed memory, up to 64 MiB a thread
HEAD = f"POST /embed HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n".encode()
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
POURED = [  # a start, what comes after it without end, and the status that refuses it
    (CHUNKED + b"0\r\nx: ", b"x: y\r\n", b"431"), (CHUNKED + b"0\r\nx: ", b"y", b"431"),
    (CHUNKED + b"0\r\nx: ", b"x" * 1000 + b": " + b"y" * 1000 + b"\r\n", b"431"),
    (CHUNKED + b"1;x=", b"y" * 100, b"431"), (HEAD, b"x: y\r\n", b"431"),
    (HEAD + b"content-length: 1000000000000\r\n\r\n", b"{" * 1000, b"413"),
    (b"\x8f\0\r\n\r\n", b"\xfe\0z" * 30, b"400"),
]  # fmt: skip
# a text of a kind in two sizes that have one vector: the large one, and one that is computed here
UNITS = {
    "words": ("the dog sleeps near it. ", 400), "ideographs": ("中文", 1000), "special": ("[SEP]", 1000),
    "emoji": ("😀 ", 1000), "lines": ("a\n", 1000), "sparse": ("a" + " " * 499, 600), "marked": ("e\u0301 ", 1000),
    "spaces": (" ", 10), "one word": ("a", 200), "accents": ("\u0301", 10), "one emoji": ("😀", 200),
    "controls": ("\1", 10), "odd lengths": ("wordswithoutend" * 20 + " ", 1000),
}  # fmt: skip


def write_head(path: str, length: int, key: str = KEY) -> bytes:
    method = "GET" if path in ("/info", "/v1/models", "/health", "/metrics") else "POST"
    return (
        f"{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode("latin-1")


class Attacks:
    """The attacks on one server."""

    def __init__(self, server: Process) -> None:
        self.server, self.port, self.counts, self.rng = server, server.port, Counter[str](), random.Random(0)
        self.most, self.ended, self.samples, self.faults = 0.0, False, list[float](), list[str]()
        warnings.simplefilter("ignore")  # of texts that are cut
        with fastflow.Runtime() as runtime:
            self.vectors = runtime.encode(TEXTS, normalize_embeddings=True)
            self._vectors = {
                name: runtime.encode([unit * few], normalize_embeddings=True)[0] for name, (unit, few) in UNITS.items()
            }
        self._bodies = {name: self._body(unit) for name, (unit, _) in UNITS.items()}
        self.kinds: dict[Callable[[], Awaitable[None]], int] = {
            self.embed_one: 60, self.embed_list: 6, self.guess: 10, self.send_malformed: 10, self.leave: 8,
            self.send_slowly: 2, self.flood: 1, self.ask_public: 3,
        }  # fmt: skip
        self.huge: dict[str, Callable[[random.Random], None]] = {
            "text": self.text, "list": self.list, "tokenize": self.tokenize, "connections": self.connections,
            "slow": self.slow, "key": self.key, "pour": self.pour,
        }  # fmt: skip

    def round(self, folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
        self.counts, self.rng, self.most, self.faults = counts, rng, 0.0, []
        if number % 2:
            self.send_huge(rng)
        else:
            asyncio.run(self.load(number // 2))
        if self.most > MOST:
            self.faults.append(f"{self.most:.0f} MiB")
        if self.faults:
            raise Finding("\n".join(self.faults[:10]))

    def measure(self) -> float:
        statm = Path(f"/proc/{self.server.process.pid}/statm")
        return int(statm.read_text(encoding="ascii").split()[1]) * 4096 / MIB

    def watch(self) -> None:
        """Keep the most that the server holds."""
        with suppress(OSError):
            while not self.ended:
                self.most = max(self.most, self.measure())
                time.sleep(0.005)

    def send_huge(self, rng: random.Random) -> None:
        chosen = ["pour", *rng.choices(list(self.huge), k=rng.randint(0, 3))]
        with ThreadPoolExecutor(len(chosen)) as pool:
            done = [(name, pool.submit(self.huge[name], random.Random(rng.random()))) for name in chosen]
        self.faults += [
            f"{name}: {type(error).__name__}: {error}" for name, each in done if (error := each.exception())
        ]

    async def load(self, turn: int) -> None:
        """Run clients while many connections are open, then time wrong keys."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE
        count, before = min(CONNECTIONS[min(turn, 1)], most), self.measure()
        streams = [await self.open_slow(i) for i in range(count)]
        print(f"{count} connections: {before:.0f} MiB before, {self.measure():.0f} with all", flush=True)
        await self.run_clients(SECONDS[min(turn, 1)])
        ends = asyncio.gather(*(reader.read() for reader, _ in streams), return_exceptions=True)
        if not (await asyncio.wait([ends], timeout=PATIENCE))[0]:
            self.faults.append("slow connections were not ended")
        for _, writer in streams:
            writer.transport.abort()
        await self.time_guesses()
        self.counts["connections"] += count

    async def open_slow(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        starts = (b"", b"POST /embed HTTP/1.1\r\nhost: a\r\nx: ", write_head("/embed", 1000) + b'{"inputs": ')
        writer.write(starts[number % 3])
        return reader, writer

    async def run_clients(self, seconds: float) -> None:
        """Begin clients at random times, and wait for the last."""
        began, sampled, running = time.monotonic(), 0.0, set()
        while (now := time.monotonic() - began) < seconds:
            task = asyncio.create_task(self.run_client())
            running.add(task)
            task.add_done_callback(running.discard)
            if now - sampled > min(5, seconds / 50):
                sampled = now
                self.samples.append(self.measure())
            await asyncio.sleep(self.rng.expovariate(RATE))
        await asyncio.gather(*running)

    async def time_guesses(self) -> None:
        """Compare the fastest tenth of the refusals of each wrong key, asked in turns."""
        taken: dict[str, list[float]] = {kind: [] for kind in GUESSED}
        for _ in range(GUESSES):
            for kind, key in GUESSED.items():
                began = time.perf_counter()
                status, _ = await self.ask("/embed", b'{"inputs": "a"}', key)
                taken[kind].append((time.perf_counter() - began) * 1e3)
                if status != 401:
                    self.faults.append(f"a wrong key: {status}")
        found = {kind: float(np.quantile(times, 0.1)) for kind, times in taken.items()}
        print("wrong keys, ms: " + ", ".join(f"{kind} {each:.2f}" for kind, each in found.items()), flush=True)
        ratio = found["first letter"] / found["last letter"]
        if not 1 / LEVEL <= ratio <= LEVEL:
            self.faults.append(f"keys wrong in the first letter take {ratio:.2f} times as long as in the last")

    async def ask(self, path: str, body: bytes, key: str = KEY) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(write_head(path, len(body), key) + body)
            await writer.drain()
            top, _, rest = (await reader.read()).partition(b"\r\n\r\n")
            return int(top.split(b" ", 2)[1]), rest
        finally:
            writer.close()

    async def run_client(self) -> None:
        kind = self.rng.choices([*self.kinds], [*self.kinds.values()])[0]
        name = kind.__name__  # type: ignore[attr-defined]
        try:
            await asyncio.wait_for(kind(), PATIENCE)
            self.counts[name] += 1
        except Exception as error:
            self.faults.append(f"{name}: {type(error).__name__}: {error}")

    async def embed(self, rows: list[int]) -> None:
        status, body = await self.ask("/embed", json.dumps({"inputs": [TEXTS[i] for i in rows]}).encode())
        self.counts[f"status {status}"] += 1
        if status == 200 and not np.array_equal(np.float32(json.loads(body)), self.vectors[rows]):
            raise Finding("a vector is not that of the Runtime")
        if status not in (200, 429):
            raise Finding(f"texts: {status} {body[:200]!r}")

    async def embed_one(self) -> None:
        await self.embed([self.rng.randrange(len(TEXTS))])

    async def embed_list(self) -> None:
        await self.embed(self.rng.choices(range(len(TEXTS)), k=self.rng.choice((16, 64, 144))))

    async def flood(self) -> None:
        await asyncio.gather(*(self.embed_one() for _ in range(200)))

    async def guess(self) -> None:
        path = self.rng.choice(("/embed", "/v1/embeddings", "/tokenize", "/info", "/v1/models"))
        status, body = await self.ask(path, b'{"inputs": "a"}', self.rng.choice(WRONG))
        if status not in (400, 401) or b"[[" in body:
            raise Finding(f"a wrong key: {status} {body[:100]!r}")

    async def send_malformed(self) -> None:
        status, body = await self.ask("/embed", self.rng.choice(MALFORMED))
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

    async def send_slowly(self) -> None:
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

    async def ask_public(self) -> None:
        status, _ = await self.ask(self.rng.choice(("/health", "/metrics")), b"", "")
        if status not in (200, 405):
            raise Finding(f"a page: {status}")

    def text(self, rng: random.Random) -> None:
        name = rng.choice(list(UNITS))
        answer = self._ask("/embed", self._bodies[name])
        if answer[0] == 200 and not np.array_equal(np.float32(answer[1][0]), self._vectors[name]):
            raise Finding(f"{name}: not the vector of the text alone")

    def list(self, rng: random.Random) -> None:
        unit = UNITS[rng.choice(list(UNITS))][0]
        size = rng.choice((1000, 20_000, 300_000))
        texts = [unit * (size // len(unit))] * max(1, min(40, BODY // size // 4))
        self._ask("/embed", json.dumps({"inputs": texts}, ensure_ascii=False).encode())

    def tokenize(self, rng: random.Random) -> None:
        unit = UNITS[rng.choice(list(UNITS))][0]
        size = rng.choice((10_000, 100_000, 600_000))
        self._ask("/tokenize", json.dumps({"inputs": unit * (size // len(unit))}, ensure_ascii=False).encode())

    def key(self, rng: random.Random) -> None:
        self._ask("/embed", self._bodies["words"], key="wrong", expected=(401,))

    def connections(self, rng: random.Random) -> None:
        start = HEAD + b"content-length: 1000000\r\n\r\n" + b" " * rng.choice((0, 1000, 60_000))
        held = []
        with suppress(OSError):
            for _ in range(rng.choice((50, 300))):
                held.append(socket.create_connection((self.server.host, self.server.port), timeout=5))
                held[-1].settimeout(5)
                held[-1].sendall(start)
        time.sleep(0.3)
        for each in held:
            each.close()
        self.counts["connections"] += len(held)

    def slow(self, rng: random.Random) -> None:
        with socket.create_connection((self.server.host, self.server.port), timeout=10) as connection:
            connection.sendall(CHUNKED)
            for _ in range(100):
                connection.sendall(b"a\r\n" + b" " * 10 + b"\r\n")
                time.sleep(0.005)
        self.counts["left early"] += 1

    def _body(self, unit: str) -> bytes:
        size = len(json.dumps(unit, ensure_ascii=False).encode()) - 2
        return json.dumps({"inputs": unit * (BODY // size)}, ensure_ascii=False).encode()

    def _ask(self, path: str, body: bytes, key: str = KEY, expected: tuple[int, ...] = ()) -> tuple[int, Any]:
        """(status, JSON) of an answer, which is counted and checked."""
        answer = self.server.ask("POST", path, raw=body, headers={"authorization": f"Bearer {key}"})
        self.counts[f"{path} {answer.status}"] += 1
        found = answer.json
        if answer.status != 200 and not (400 <= answer.status < 600 and "\n" not in (said := found["error"]) and said):
            raise Finding(f"{path}: {answer.status} {answer.body[:200]!r}")
        if answer.status == 500 or (expected and answer.status not in expected):
            raise Finding(f"{path}: {answer.status} {answer.body[:200]!r}")
        return answer.status, found

    def pour(self, rng: random.Random) -> None:
        start, more, status = rng.choice(POURED)
        block = more * (MIB // 4 // len(more) + 1)
        with socket.create_connection((self.server.host, self.server.port), timeout=60) as connection:
            with suppress(ConnectionError):
                connection.sendall(start)
                for _ in range(400):
                    connection.sendall(block)
                else:
                    raise Finding(f"over 100 MB of {start[-20:]!r} are taken")
            with suppress(ConnectionError):
                found = connection.recv(12)
                if found and found[9:] not in (status, b"429", b"503"):
                    raise Finding(f"{found!r} after {start[-20:]!r}")
        self.counts["poured"] += 1


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[..., None]]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    (folder / "keys").write_text(KEY)
    with serving_process(
        "--api-key-file", "keys", "--max-connections", CONNECTIONS[1] + SPARE, folder=folder
    ) as server:
        threading.Thread(target=server.process.stderr.read, daemon=True).start()
        attacks = Attacks(server)
        before, watch = attacks.measure(), threading.Thread(target=attacks.watch, daemon=True)
        watch.start()
        yield attacks.round
        attacks.ended = True
        watch.join()
        time.sleep(1)
        if server.process.poll() is not None:
            raise Finding(f"the server ended with {server.process.returncode}")
        left = attacks.measure() - before
    quarters = [float(median(part)) for part in np.array_split(attacks.samples, 4)]
    shown = ", ".join(f"{each:.0f}" for each in quarters)
    print(f"memory: {before:.0f} MiB before, {left:+.0f} after; under load, median of each quarter: {shown}")
    if left > GROWTH or quarters[3] - quarters[1] > FLAT:
        raise Finding("memory grew")
