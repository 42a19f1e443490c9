"""Attacks on the memory of ``fastflow serve``: huge texts, trailers, many and slow connections, wrong keys.

In a round some attacks come at once. Each answer must be 200 with the vector of a shorter text that has the same
vector, or a refusal in one sentence. The memory of the server must stay below a bound, and near its level before.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from clients import KEY, MIB, measure_memory, serve
from harness import Finding

import fastflow

from support.servers import Process

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


class Attacks:
    """The attacks on one server."""

    def __init__(self, server: Process) -> None:
        self.server, self.counts, self.most, self.ended = server, Counter[str](), 0.0, False
        warnings.simplefilter("ignore")  # of texts that are cut
        with fastflow.Runtime() as runtime:
            self._vectors = {
                name: runtime.encode([unit * few], normalize_embeddings=True)[0] for name, (unit, few) in UNITS.items()
            }
        self._bodies = {name: self._body(unit) for name, (unit, _) in UNITS.items()}
        self.kinds: dict[str, Callable[[random.Random], None]] = {
            "text": self.text, "list": self.list, "tokenize": self.tokenize, "connections": self.connections,
            "slow": self.slow, "key": self.key, "pour": self.pour,
        }  # fmt: skip

    def round(self, folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
        self.counts, self.most = counts, 0.0
        chosen = ["pour", *rng.choices(list(self.kinds), k=rng.randint(0, 3))]
        with ThreadPoolExecutor(len(chosen)) as pool:
            done = [(name, pool.submit(self.kinds[name], random.Random(rng.random()))) for name in chosen]
        faults = [f"{name}: {type(error).__name__}: {error}" for name, each in done if (error := each.exception())]
        if self.most > MOST:
            faults.append(f"{self.most:.0f} MiB")
        if faults:
            raise Finding("; ".join(faults))

    def watch(self) -> None:
        """Keep the most that the server holds."""
        with suppress(OSError):
            while not self.ended:
                self.most = max(self.most, measure_memory(self.server))
                time.sleep(0.005)

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
def prepare(folder: Path, paths: list[Path]) -> Iterator[Callable[..., None]]:
    with serve(folder) as server:
        attacks = Attacks(server)
        before, watch = measure_memory(server), threading.Thread(target=attacks.watch, daemon=True)
        watch.start()
        yield attacks.round
        attacks.ended = True
        watch.join()
        time.sleep(1)
        left = measure_memory(server) - before
        print(f"{before:.0f} MiB before, {left:+.0f} after")
        if left > GROWTH:
            raise Finding(f"{left:.0f} MiB more than before stay")
