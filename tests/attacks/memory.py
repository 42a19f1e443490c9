"""Attack the memory of ``fastflow serve``: huge texts, trailers, many and slow connections, wrong keys.

    python tests/attacks/memory.py --rounds 40 --seconds 300 --seed 0

In a round some attacks come at once. Each answer must be 200 with the vector of the same text at large, computed
alone, or a refusal in one sentence; the memory of the server must stay below a bound, and near its level after the
first rounds. Exit code 1 and the seed of the round for anything else.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from boxed import asked

import fastflow

from support.servers import Process, serving_process

MIB = 2**20
BODY = 15_800_000  # bytes of a body, under the limit of 16 MiB
MOST = 640 * MIB  # of the server in all; four bodies at once, each with its text at four bytes a character, are 400
GROWTH = 256 * MIB  # left after a round: what the C library keeps of freed memory, up to 64 MiB a thread
KEY = "right"
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
    """The attacks on one server, and what came of them."""

    def __init__(self, server: Process, seed: int) -> None:
        self.server, self.seed = server, seed
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
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

    def round(self, number: int) -> None:
        """Some attacks at once."""
        rng = random.Random(f"{self.seed}:{number}")
        chosen = ["pour", *rng.choices(list(self.kinds), k=rng.randint(0, 3))]
        with ThreadPoolExecutor(len(chosen)) as pool:
            done = [(name, pool.submit(self.kinds[name], random.Random(rng.random()))) for name in chosen]
        for name, each in done:
            if error := each.exception():
                self.fault(f"{name}: {type(error).__name__}: {error}")

    def fault(self, what: str) -> None:
        self.faults.append(what)
        print(f"seed {self.seed}: {what}", flush=True)

    def text(self, rng: random.Random) -> None:
        """One text as long as a body may be."""
        name = rng.choice(list(UNITS))
        answer = self._ask("/embed", self._bodies[name])
        if answer[0] == 200 and not np.array_equal(np.float32(answer[1][0]), self._vectors[name]):
            self.fault(f"{name}: not the vector of the text alone")

    def list(self, rng: random.Random) -> None:
        """Many texts, each of some thousand characters."""
        unit = UNITS[rng.choice(list(UNITS))][0]
        size = rng.choice((1000, 20_000, 300_000))
        texts = [unit * (size // len(unit))] * max(1, min(40, BODY // size // 4))
        self._ask("/embed", json.dumps({"inputs": texts}, ensure_ascii=False).encode())

    def tokenize(self, rng: random.Random) -> None:
        """The tokens of a text, whose answer is many times as long."""
        unit = UNITS[rng.choice(list(UNITS))][0]
        size = rng.choice((10_000, 100_000, 600_000))
        self._ask("/tokenize", json.dumps({"inputs": unit * (size // len(unit))}, ensure_ascii=False).encode())

    def key(self, rng: random.Random) -> None:
        """A body and trailers with a wrong key."""
        self._ask("/embed", self._bodies["words"], key="wrong", expected=(401,))

    def connections(self, rng: random.Random) -> None:
        """Connections that send a part of a body, or nothing."""
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
        """A body that comes in small parts, and ends early."""
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
            self.fault(f"{path}: {answer.status} {answer.body[:200]!r}")
        if answer.status == 500 or (expected and answer.status not in expected):
            self.fault(f"{path}: {answer.status} {answer.body[:200]!r}")
        return answer.status, found

    def pour(self, rng: random.Random) -> None:
        """Send more and more until the server refuses it, which it must within 100 MB."""
        start, more, status = rng.choice(POURED)
        block = more * (MIB // 4 // len(more) + 1)
        with socket.create_connection((self.server.host, self.server.port), timeout=60) as connection:
            with suppress(ConnectionError):
                connection.sendall(start)
                for _ in range(400):
                    connection.sendall(block)
                else:
                    self.fault(f"over 100 MB of {start[-20:]!r} are taken")
            with suppress(ConnectionError):
                found = connection.recv(12)
                if found and found[9:] not in (status, b"429", b"503"):
                    self.fault(f"{found!r} after {start[-20:]!r}")
        self.counts["poured"] += 1


def resident(pid: int) -> int:
    """Bytes that a process holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096


class Watch:
    """The most that a process holds, looked at all the time."""

    def __init__(self, pid: int) -> None:
        self.most, self._pid, self._ended = 0, pid, False
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with suppress(OSError):
            while not self._ended:
                self.most = max(self.most, resident(self._pid))
                time.sleep(0.005)

    def end(self) -> None:
        self._ended = True
        self._thread.join()


def main() -> int:
    """Run the rounds and print what came of them."""
    options = asked(__doc__ or "", rounds=40)
    start, rounds = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "keys").write_text(KEY)
        with serving_process("--api-key-file", "keys", folder=Path(folder)) as server:
            attacks, pid = Attacks(server, options.seed), server.process.pid
            drain = threading.Thread(target=server.process.stderr.read, daemon=True)  # type: ignore[union-attr]
            drain.start()
            before, watch = resident(pid), Watch(pid)
            while rounds < options.rounds and time.monotonic() - start < options.seconds:
                attacks.round(rounds)
                if server.process.poll() is not None:
                    attacks.fault(f"the server ended with {server.process.returncode} in round {rounds}")
                    break
                rounds += 1
                if watch.most > MOST:
                    attacks.fault(f"{watch.most / MIB:.0f} MiB in round {rounds - 1}")
                    watch.most = 0
            else:
                time.sleep(1)
                left = resident(pid) - before
                if left > GROWTH:
                    attacks.fault(f"{left / MIB:.0f} MiB more than before stay")
                print(f"{before / MIB:.0f} MiB before, {watch.most / MIB:.0f} at most, {left / MIB:+.0f} after")
            watch.end()
    for name, count in sorted(attacks.counts.items()):
        print(f"{count:7}  {name}")
    print(f"{rounds} rounds, {len(attacks.faults)} faults, {time.monotonic() - start:.0f} s")
    return 1 if attacks.faults else 0


if __name__ == "__main__":
    sys.exit(main())
