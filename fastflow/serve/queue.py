"""The queue of waiting texts: who is admitted, whose texts come next, and which are never computed.

Plain data without clock, threads or event loop; ``serve.engine`` brings these. Work is counted in tokens, and in
seconds by the rate at which the machine computes tokens. Requests take turns: each gives a few texts to a batch before
any gives more, so a long list holds up a short one by a turn, not by its length.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

SMOOTH = 0.2  # weight of the last batch in the rate
LONGEST = 60  # seconds of Retry-After; clients such as openai's ignore a longer one
WAIT, TIMEOUT = "--max-queue-seconds", "--timeout"


class Busy(Exception):
    """A request is refused for now. It is accepted after ``seconds``, or now by a server with a larger ``option``."""

    def __init__(self, seconds: float, option: str) -> None:
        super().__init__(seconds)
        self.seconds, self.option = min(LONGEST, max(1, math.ceil(seconds))), option


class Promised:
    """The work of refused requests, which come back later, spread over the time that the machine needs for them.

    If all came back at one time, most would be refused again, and the machine would idle until then.
    """

    def __init__(self) -> None:
        self.work = 0.0

    def refuse(self, seconds: float, own: float, rate: float, option: str) -> Busy:
        """Make the refusal of a request of ``own`` work, for which ``seconds`` are enough if it is the only one.

        ``rate``: the work of a second.
        """
        busy = Busy(seconds + self.work / rate, option)
        self.work = min(self.work + own, LONGEST * rate)
        return busy

    def done(self, work: float) -> None:
        """Count ``work`` that the machine has done, for any request."""
        self.work = max(0.0, self.work - work)


class TooMuch(Exception):
    """A request is refused for good: it alone takes ``seconds``, more than its deadline leaves."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Job:
    """The texts of one request, from its admission to its last batch.

    ``estimate``: tokens at its admission; ``left``: tokens not handed out, by the estimate until ``Queue.put`` gives
    the ``lengths``; ``turn``: tokens of its next turn; ``next``: the first text not handed out; ``deadline``: the time
    from which nothing more is computed.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.estimate = self.left = self.turn = 0
        self.lengths: Sequence[int] = ()
        self.next = 0
        self.gone = False  # finished, cancelled or expired: it counts no more


AnyJob = TypeVar("AnyJob", bound=Job)
Slice = tuple[AnyJob, int, int]  # a job, its first text and the one after its last


@dataclass(frozen=True)
class Bounds:
    """``batch``: seconds that a batch takes, between ``least`` and ``most`` tokens. ``turn``: tokens of one request's
    turn in it. ``wait``: seconds before a request's first turn, above which it is refused. ``work``: seconds in which
    any request must be finished.
    """

    batch: float
    least: int
    most: int
    turn: int
    wait: float
    work: float


class Queue(Generic[AnyJob]):
    """Jobs that wait; not safe to call from several threads at once."""

    def __init__(self, bounds: Bounds, rate: float) -> None:
        """``rate``: tokens that are computed in a second, by the last measurement; ``learn`` corrects it."""
        self.bounds, self.rate = bounds, rate
        self.work = 0  # tokens admitted and not handed out
        self.turns = 0  # the same, of each job its next turn alone: what comes before the first turn of a new one
        self.running = 0  # tokens of the batch that was handed out last
        self.jobs = 0
        self.longer = 1.0  # tokens of a text over its estimate, lately
        self.promised = Promised()
        self._waiting: deque[AnyJob] = deque()

    @property
    def batch(self) -> int:
        """The most tokens of a batch."""
        return min(self.bounds.most, max(self.bounds.least, int(self.rate * self.bounds.batch)))

    @property
    def wait(self) -> float:
        """Seconds before the first turn of a request that comes now."""
        return (self.turns + self.running) / self.rate

    def check_wait(self) -> None:
        """Raise Busy if a request that comes now would wait for its first turn for longer than ``bounds.wait``.

        It comes back when half of that wait is left, so a late client or a wrong rate does not let the machine idle.
        Long requests take a turn in every batch until they end, so the wait falls with the work.
        """
        if self.wait > self.bounds.wait:
            raise self._refuse((self.work + self.running) / self.rate - self.bounds.wait / 2, WAIT)

    def learn(self, tokens: int, seconds: float) -> None:
        """A batch of ``tokens`` took ``seconds``; one smaller than a turn is no measure of the speed.

        On a slow machine a turn may be more than a batch; a batch that is half full, or fuller, is measured there.
        """
        if tokens >= min(self.bounds.turn, self.batch // 2) and seconds > 0:
            self.rate += SMOOTH * (tokens / seconds - self.rate)

    def admit(self, job: AnyJob, tokens: int) -> None:
        """Count ``job``, of about ``tokens``, from now on. Raises Busy or TooMuch, by one rule for one text and many.

        It must get its first turn in time (``check_wait``), and be finished within ``bounds.work``. A job of one turn
        waits for a turn of each other job. A longer one waits for all their work, and for jobs that come later: these
        may take half of the time. A job that needs more is accepted if less than ``bounds.wait`` is before it.
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
        """The texts of ``job`` are ready: it waits for its turns. One that was dropped meanwhile is left out."""
        if job.gone:
            return
        tokens = sum(lengths)
        self.longer += SMOOTH * (tokens / max(1, job.estimate) - self.longer)
        job.lengths = lengths
        self._count(job, tokens - job.left)
        self._waiting.append(job)

    def take(self, now: float) -> tuple[list[Slice[AnyJob]], list[AnyJob]]:
        """The next batch, and the jobs that expired before it; both may be empty. The batch counts as running."""
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
            stop, tokens = self._turn(job, room, forced=not batch)
            if stop == job.next:  # its next text does not fit: it comes first in the next batch
                self._waiting.appendleft(job)
                break
            room -= tokens
            self._hand_out(job, stop, tokens, batch)
        self.running = batch_tokens - room
        self.promised.done(self.running if batch or self.turns else math.inf)  # an idle machine accepts all
        return batch, expired

    def drop(self, job: Job) -> None:
        """``job`` is cancelled: what was not handed out is never computed."""
        if not job.gone:
            self._count(job, -job.left)
            job.gone = True
            self.jobs -= 1

    def _refuse(self, seconds: float, option: str) -> Busy:
        """Make a refusal; the request counts as much as the mean one that waits, for it may not be read yet."""
        return self.promised.refuse(seconds, self.work / max(1, self.jobs), self.rate, option)

    def _turn(self, job: Job, room: int, forced: bool) -> tuple[int, int]:
        """(the text to stop before, the tokens until there) of the next turn of ``job``: a turn's tokens and at most
        ``room``, but one text at least if it fits, or is ``forced``.
        """
        stop, tokens, most = job.next, 0, min(room, self.bounds.turn)
        while stop < len(job.lengths):
            after = tokens + job.lengths[stop]
            if after > most and not (stop == job.next and (forced or after <= room)):
                break
            stop, tokens = stop + 1, after
        return stop, tokens

    def _hand_out(self, job: AnyJob, stop: int, tokens: int, batch: list[Slice[AnyJob]]) -> None:
        if batch and batch[-1][0] is job:  # alone, it takes one turn after the other
            batch[-1] = (job, batch[-1][1], stop)
        else:
            batch.append((job, job.next, stop))
        job.next = stop
        self._count(job, -tokens)
        if stop < len(job.lengths):
            self._waiting.append(job)
        else:
            self.drop(job)

    def _count(self, job: Job, tokens: int) -> None:
        """``job`` has ``tokens`` more to compute than before; its turn has one text at least, however long."""
        before = job.turn
        job.left += tokens
        longest = max(self.bounds.turn, job.lengths[job.next] if job.next < len(job.lengths) else 0)
        job.turn = min(job.left, longest)
        self.work += tokens
        self.turns += job.turn - before
