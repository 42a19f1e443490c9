"""An open-loop load: requests leave at a constant rate; their time counts from the moment they were due."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

GRACE = 30.0  # seconds for the answers after the last request


@dataclass(frozen=True)
class Load:
    """A load: ``count`` requests, ``rate`` a second, of JSON ``bodies`` in rotation, the first ``lead`` unmeasured."""

    port: int
    path: str
    bodies: tuple[str, ...]
    rate: float
    count: int
    connections: int = 512
    lead: int = 0


@dataclass
class Outcome:
    """By status, milliseconds from due time to answer; lateness of sending; the generator's processor seconds.

    Requests of the lead count only in ``seconds``, ``cpu_seconds`` and ``ended``.
    """

    answered_ms: dict[str, list[float]] = field(default_factory=dict)
    late_ms: list[float] = field(default_factory=list)
    unsent: int = 0  # requests due while every connection was taken
    lost: int = 0  # connections that ended without an answer
    ended: dict[str, int] = field(default_factory=dict)  # requests by status; "" for unsent and lost
    seconds: float = 0.0  # from the first request due to the last answer
    cpu_seconds: float = 0.0

    def end(self, status: str) -> None:
        self.ended[status] = self.ended.get(status, 0) + 1

    def quantile(self, share: float, status: str = "200") -> float | None:
        """Return the milliseconds within which ``share`` of the answers arrived."""
        found = self.answered_ms.get(status)
        return float(np.quantile(found, share)) if found else None

    def count(self, status: str = "200") -> int:
        return len(self.answered_ms.get(status, []))


class Connection(asyncio.Protocol):
    """A keep-alive connection with at most one request."""

    def __init__(self, outcome: Outcome, idle: list[Connection]) -> None:
        self.outcome, self.idle, self.due, self.counts = outcome, idle, 0.0, True
        self._got = bytearray()
        self._needed = -1  # bytes of the whole answer, once its head has arrived

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, request: bytes, due: float, counts: bool) -> None:
        self.due, self.counts = due, counts
        if counts:
            self.outcome.late_ms.append((time.perf_counter() - due) * 1e3)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._needed < 0 and (end := self._got.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._got[:end]).lower()
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            self._needed = end + 4 + int(length.split(b":")[1])
        if 0 <= self._needed <= len(self._got):
            status = self._got[9:12].decode()
            self.outcome.end(status)
            if self.counts:
                self.outcome.answered_ms.setdefault(status, []).append((time.perf_counter() - self.due) * 1e3)
            self._got.clear()
            self._needed, self.due = -1, 0.0
            self.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.due:
            self.outcome.end("")
            self.outcome.lost += self.counts
        if self in self.idle:
            self.idle.remove(self)


async def generate(plan: Load) -> Outcome:
    """Send the requests of ``plan`` and wait for the answers."""
    outcome, loop = Outcome(), asyncio.get_running_loop()
    idle, every = list[Connection](), list[Connection]()
    head = f"POST {plan.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    requests = [f"{head}content-length: {len(body.encode())}\r\n\r\n{body}".encode() for body in plan.bodies]
    for _ in range(plan.connections):
        _, made = await loop.create_connection(lambda: Connection(outcome, idle), "127.0.0.1", plan.port)
        every.append(made)
    idle += every
    start, cpu = time.perf_counter() + 0.05, time.process_time()
    for i in range(plan.count):
        due = start + i / plan.rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        elif i % 16 == 0:
            await asyncio.sleep(0)  # lets answers be read
        if idle:
            idle.pop().send(requests[i % len(requests)], due, i >= plan.lead)
        else:
            outcome.end("")
            outcome.unsent += i >= plan.lead
    end = time.perf_counter() + GRACE
    while sum(outcome.ended.values()) < plan.count and time.perf_counter() < end:
        await asyncio.sleep(0.002)
    outcome.seconds = time.perf_counter() - start
    outcome.cpu_seconds = time.process_time() - cpu
    for one in every:
        one.transport.close()
    await asyncio.sleep(0)  # counts unanswered requests as lost
    return outcome


def main() -> None:
    """Run the plan on standard input, JSON, and print its outcome."""
    given = json.load(sys.stdin)
    plan = Load(**given | {"bodies": tuple(given["bodies"])})
    json.dump(asdict(asyncio.run(generate(plan))), sys.stdout)


if __name__ == "__main__":
    main()
