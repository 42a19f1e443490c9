"""The queue of waiting texts: admission, order and expiry, as plain data without clock, threads or event loop.

Work is counted in tokens. Requests take turns of a few texts, so a long request delays a short one by one turn.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

SMOOTH = 0.2  # weight of the last batch in the rate
LONGEST = 60  # seconds of Retry-After; openai's client ignores more
WAIT, TIMEOUT = "--max-queue-seconds", "--timeout"


def round_wait(seconds: float) -> int:
    """Round the seconds until a retry up, to 1 at least."""
    return max(1, math.ceil(seconds))


class Busy(Exception):
    """Error: a request fits only after ``seconds``, or with a larger ``option``."""

    def __init__(self, seconds: float, option: str) -> None:
        super().__init__(seconds)
        self.seconds, self.option = min(LONGEST, round_wait(seconds)), option


class Promised:
    """Work of refused requests, told to return at different times."""

    def __init__(self) -> None:
        self.work = 0.0

    def refuse(self, seconds: float, own: float, rate: float, option: str) -> Busy:
        """Refuse a request of ``own`` work that would fit after ``seconds``."""
        busy = Busy(seconds + self.work / rate, option)
        self.work = min(self.work + own, LONGEST * rate)
        return busy

    def subtract(self, work: float) -> None:
        self.work = max(0.0, self.work - work)


class TooMuch(Exception):
    """Error: the request needs ``seconds``, more than a request may take."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class QueuedJob:
    """The texts of one request, from its admission to its last batch.

    ``estimate``: tokens at admission. ``left``: tokens not in a batch yet, estimated until ``Queue.put``. ``turn``:
    tokens of its next turn. ``next``: the first text not in a batch yet.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.estimate = self.left = self.turn = 0
        self.lengths: Sequence[int] = ()
        self.next = 0
        self.gone = False  # finished, cancelled or expired


AnyJob = TypeVar("AnyJob", bound=QueuedJob)
Slice = tuple[AnyJob, int, int]  # texts of a job: the job, first, end


@dataclass(frozen=True)
class Bounds:
    """Limits of a queue: ``batch`` seconds and ``least`` to ``most`` tokens of a batch.

    ``turn``: tokens of one request in a batch. ``wait``: most seconds before its first turn. ``work``: most seconds in
    all.
    """

    batch: float
    least: int
    most: int
    turn: int
    wait: float
    work: float


class Queue(Generic[AnyJob]):
    """Jobs that wait to be computed."""

    def __init__(self, bounds: Bounds, rate: float) -> None:
        """``rate``: measured tokens a second; ``learn`` corrects it."""
        self.bounds, self.rate = bounds, rate
        self.work = 0  # tokens admitted and not in a batch yet
        self.turns = 0  # tokens of every job's next turn
        self.running = 0  # tokens of the batch taken last
        self.jobs = 0
        self.longer = 1.0  # recent tokens of a text, divided by their estimate
        self.promised = Promised()
        self._waiting: deque[AnyJob] = deque()

    @property
    def batch(self) -> int:
        return min(self.bounds.most, max(self.bounds.least, int(self.rate * self.bounds.batch)))

    @property
    def wait(self) -> float:
        return (self.turns + self.running) / self.rate

    def check_wait(self) -> None:
        """Raise Busy if a new request would wait longer than ``bounds.wait`` for its first turn.

        It may return when ``bounds.wait`` / 2 of work is left: a wrong rate does not idle the machine.
        """
        if self.wait > self.bounds.wait:
            raise self._refuse((self.work + self.running) / self.rate - self.bounds.wait / 2, WAIT)

    def learn(self, tokens: int, seconds: float) -> None:
        """Learn the rate from a batch of ``tokens`` that took ``seconds``, unless it was small."""
        if tokens >= min(self.bounds.turn, self.batch // 2) and seconds > 0:
            self.rate += SMOOTH * (tokens / seconds - self.rate)

    def admit(self, job: AnyJob, tokens: int) -> None:
        """Accept ``job``, of about ``tokens``, and count its work; raises Busy or TooMuch.

        It must get its first turn in time (``check_wait``) and end within ``bounds.work``. A job of one turn waits for
        a turn of each other job; a longer job for all their work, and half of its time is left to later jobs.
        """
        job.estimate, tokens = tokens, math.ceil(tokens * self.longer)
        own, wait, most = tokens / self.rate, self.wait, self.bounds.work
        if own > most:
            raise TooMuch(own)
        self.check_wait()
        before = wait if tokens <= self.bounds.turn else (self.work + self.running) / self.rate
        free = max(most / 2 - own, min(self.bounds.wait, most - own))
        if before > free:
            raise self._refuse(before - free, TIMEOUT)
        self.jobs += 1
        self._count(job, tokens)

    def put(self, job: AnyJob, lengths: Sequence[int]) -> None:
        """Let ``job``, unless dropped, wait; ``lengths``: tokens of its texts."""
        if job.gone:
            return
        tokens = sum(lengths)
        self.longer += SMOOTH * (tokens / max(1, job.estimate) - self.longer)
        job.lengths = lengths
        self._count(job, tokens - job.left)
        self._waiting.append(job)

    def take(self, now: float) -> tuple[list[Slice[AnyJob]], list[AnyJob]]:
        """Return the next batch, which then counts as running, and the expired jobs."""
        batch: list[Slice[AnyJob]] = []
        expired: list[AnyJob] = []
        room = batch_tokens = self.batch
        while self._waiting and room > 0:
            job = self._waiting.popleft()
            if job.gone:
                continue
            if job.deadline <= now:
                self.drop(job)
                expired.append(job)
                continue
            stop, tokens = self._choose_turn(job, room, forced=not batch)
            if stop == job.next:
                self._waiting.appendleft(job)
                break
            room -= tokens
            self._hand_out(job, stop, tokens, batch)
        self.running = batch_tokens - room
        self.promised.subtract(self.running if batch or self.turns else math.inf)  # an idle machine accepts all
        return batch, expired

    def drop(self, job: QueuedJob) -> None:
        if not job.gone:
            self._count(job, -job.left)
            job.gone = True
            self.jobs -= 1

    def _refuse(self, seconds: float, option: str) -> Busy:
        """Refuse a request as if of mean work: its body may be unread."""
        return self.promised.refuse(seconds, self.work / max(1, self.jobs), self.rate, option)

    def _choose_turn(self, job: QueuedJob, room: int, forced: bool) -> tuple[int, int]:
        """Return (end, tokens) of the next turn of ``job``; a ``forced`` first text may exceed ``room``."""
        stop, tokens, most = job.next, 0, min(room, self.bounds.turn)
        while stop < len(job.lengths):
            after = tokens + job.lengths[stop]
            if after > most and not (stop == job.next and (forced or after <= room)):
                break
            stop, tokens = stop + 1, after
        return stop, tokens

    def _hand_out(self, job: AnyJob, stop: int, tokens: int, batch: list[Slice[AnyJob]]) -> None:
        if batch and batch[-1][0] is job:  # only one job waits: join its turns
            batch[-1] = (job, batch[-1][1], stop)
        else:
            batch.append((job, job.next, stop))
        job.next = stop
        self._count(job, -tokens)
        if stop < len(job.lengths):
            self._waiting.append(job)
        else:
            self.drop(job)

    def _count(self, job: QueuedJob, tokens: int) -> None:
        before = job.turn
        job.left += tokens
        longest = max(self.bounds.turn, job.lengths[job.next] if job.next < len(job.lengths) else 0)
        job.turn = min(job.left, longest)
        self.work += tokens
        self.turns += job.turn - before
