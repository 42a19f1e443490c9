"""More comes than is computed: the machine stays busy, and a refused request is accepted when it comes back."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pytest

from fastflow.serve.queue import Bounds, Busy, Job, Queue

RATE = 1000.0  # tokens a second, as the queue believes at first
BATCH, TURN, WAIT = 0.1, 25, 10.0


def make_queue(wait: float = WAIT) -> Queue:
    return Queue(Bounds(batch=BATCH, least=50, most=400, turn=TURN, wait=wait, work=60.0), RATE)


class Outcome(NamedTuple):
    """Seconds from the first try to the answer, the requests without an answer, and the share of time computing."""

    times: list[float]
    failed: int
    busy: float


def simulate(
    queue: Queue, coming: Iterable[tuple[float, list[int]]], speed: float = 1.0, retries: int = 2, read: float = 0.02
) -> Outcome:
    """Send requests (time, lengths) to a machine of ``speed`` times RATE; clients obey Retry-After ``retries`` times.

    Texts become tokens ``read`` seconds after their admission; until then they count twice, as English does by its
    letters. The machine's speed varies from batch to batch, by a fixed seed.
    """
    rng, times, failed, busy, now, idle = np.random.default_rng(0), [], 0, 0.0, 0.0, True
    events = [(time, at, "try", (time, lengths, retries)) for at, (time, lengths) in enumerate(coming)]
    heapq.heapify(events)
    first, due = events[0][0], {}

    def later(time, what, value):
        heapq.heappush(events, (time, len(events) + 1e9 + rng.random(), what, value))

    while events:
        now, _, what, value = heapq.heappop(events)
        if what == "try":
            start, lengths, left = value
            job = Job(now + 60)
            try:
                queue.admit(job, 2 * sum(lengths))
                due[job] = start
                later(now + read, "put", (job, lengths))
            except Busy as refused:
                failed += not left
                if left:
                    later(now + refused.seconds, "try", (start, lengths, left - 1))
        elif what == "put":
            queue.put(*value)
        else:
            batch, tokens, spent = value
            times += [now - due[job] for job, _, stop in batch if stop == len(job.lengths)]
            queue.learn(tokens, spent)
            idle = True
        if idle and (batch := queue.take(now)[0]):
            tokens, idle = queue.running, False
            spent = tokens / (RATE * speed) * rng.uniform(0.9, 1.1)
            busy += spent
            later(now + spent, "done", (batch, tokens, spent))
    return Outcome(times, failed, busy / (now - first))


def burst(seconds: float, size: int = 1) -> list[tuple[float, list[int]]]:
    """Requests of ``size`` texts, so much work at RATE, within a tenth of a second."""
    lengths = np.random.default_rng(1).integers(5, 40, int(seconds * RATE / 22)).tolist()
    groups = [lengths[at : at + size] for at in range(0, len(lengths), size)]
    return [(0.1 * at / len(groups), group) for at, group in enumerate(groups)]


@pytest.mark.parametrize("size", [1, 32])
@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0], ids="speed {}".format)
@pytest.mark.parametrize("seconds", [3.0, 15.0, 45.0], ids="{} s".format)
def test_a_burst_is_answered_whole_by_a_machine_that_stays_busy(seconds, speed, size):
    """A refused request is accepted at one of its two retries, even if the queue began with a wrong speed."""
    coming = burst(seconds * speed, size)
    found = simulate(make_queue(), coming, speed)
    assert (len(found.times), found.failed) == (len(coming), 0)
    assert found.busy > (0.9 if speed == 1 else 0.55)


def test_a_burst_within_a_clients_patience_is_never_refused():
    assert simulate(make_queue(), burst(9.0), retries=0).failed == 0


def test_a_request_is_refused_exactly_if_it_would_wait_too_long():
    """Earlier refusals do not count: the machine never idles while it refuses a request that it can answer."""
    queue = make_queue(1.0)
    for _ in range(3):
        for _ in range(41):
            job = Job(60.0)
            queue.admit(job, TURN)
            queue.put(job, [TURN])
        with pytest.raises(Busy):
            queue.check_wait()
        while queue.wait > 1.0:
            queue.take(0.0)
        queue.check_wait()
        while queue.take(0.0)[0]:
            pass


def test_refused_requests_come_back_one_after_the_other():
    """Half of the wait is left for the first; requests with the same Retry-After are at most a second's work."""
    queue, told = make_queue(), []
    for _ in range(401):
        queue.admit(Job(60.0), TURN)
    for _ in range(400):
        with pytest.raises(Busy) as refused:
            queue.admit(Job(60.0), TURN)
        told.append(refused.value.seconds)
    assert told == sorted(told)
    assert (told[0], told[-1]) == (6, 15)  # 5 s until half of 10 s, and 400 requests of 25 tokens
    assert max(told.count(second) for second in set(told)) <= RATE / TURN


def test_promises_end_when_the_machine_idles():
    queue = make_queue()
    job = Job(60.0)
    queue.admit(job, 20_000)
    for _ in range(500):
        with pytest.raises(Busy):
            queue.admit(Job(60.0), 50_000)
    queue.drop(job)
    queue.take(0.0)
    assert queue.promised.work == 0


def steadily(share: float, seconds: float = 30.0) -> list[tuple[float, list[int]]]:
    """Texts at a constant rate, of ``share`` times the machine's speed."""
    lengths = np.random.default_rng(0).integers(5, 40, int(share * RATE / 22 * seconds)).tolist()
    return [(at / len(lengths) * seconds, [length]) for at, length in enumerate(lengths)]


@pytest.mark.parametrize("wait", [0.5, 2.0], ids="{} s".format)
def test_in_a_lasting_flood_an_answer_takes_the_time_that_is_allowed(wait):
    found = simulate(make_queue(wait), steadily(3.0), retries=0)
    assert np.quantile(found.times, 0.99) < wait + 2.5 * BATCH
    assert 0.6 < found.failed / (found.failed + len(found.times)) < 0.7
    assert found.busy > 0.98


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95])
def test_what_can_be_computed_is_not_refused(share):
    found = simulate(make_queue(), steadily(share), retries=0)
    assert found.failed == 0
    assert np.quantile(found.times, 0.99) < 2.5 * BATCH
