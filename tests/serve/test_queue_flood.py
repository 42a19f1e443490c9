"""More comes than is computed: the queue stays short, the machine stays busy, and a burst is no flood."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from fastflow.serve.queue import Bounds, Busy, Job, Queue

BOUNDS = Bounds(batch=0.1, least=50, most=400, turn=25, wait=0.5, work=10.0)
RATE, BATCH = 1000.0, 100  # tokens a second, and of a batch


def admitted(queue: Queue, *lengths: int) -> Job:
    job = Job(10.0)
    queue.admit(job, sum(lengths))
    queue.put(job, lengths)
    return job


def flood(queue: Queue, length: int) -> None:
    """Texts until one is refused, which raises Busy."""
    while True:
        admitted(queue, length)


def flooded_queue() -> Queue:
    """A queue that has refused a request, and whose last batch begins: nothing waits after it."""
    queue = Queue(BOUNDS, RATE)
    with pytest.raises(Busy):
        flood(queue, 20)
    while queue.turns:
        queue.take(0)
    return queue


def test_long_texts_are_refused_by_the_time_that_they_take():
    queue = Queue(BOUNDS, RATE)
    with pytest.raises(Busy):
        flood(queue, 60)
    assert queue.work <= BOUNDS.wait * RATE + 60


def test_after_a_refusal_a_request_must_fit_into_the_next_batch():
    queue = flooded_queue()
    for _ in range(5):
        admitted(queue, 20)
    for lengths in ([20], [5] * 100):
        with pytest.raises(Busy):
            admitted(queue, *lengths)
    queue.check_wait()  # the smallest request might still fit, for all that is known before it is read
    assert sum(sum(job.lengths) for job, *_ in queue.take(0)[0]) == BATCH


def test_one_request_fits_however_long():
    queue = flooded_queue()
    admitted(queue, 300)
    with pytest.raises(Busy):
        queue.check_wait()


def test_lists_that_have_begun_leave_room_for_a_text():
    """Lists keep the machine busy for long; until they end, a text is answered as if nothing had been refused."""
    queue = flooded_queue()
    lists = [admitted(queue, *[5] * 100) for _ in range(4)]
    while not all(job.next for job in lists):
        queue.take(0)
    assert (queue.turns, queue.fresh) == (4 * BOUNDS.turn, 0)
    text = admitted(queue, 20)
    assert queue.fresh == 20
    batches = [[job for job, *_ in queue.take(0)[0]] for _ in range(2)]
    assert text in batches[0] + batches[1]
    assert queue.fresh == 0


def test_a_burst_is_welcome_again_when_the_work_has_run_out():
    queue = flooded_queue()
    admitted(queue, 20)
    queue.take(0)
    assert queue.flooded
    assert queue.take(0) == ([], [])
    for _ in range(20):
        admitted(queue, 20)


def test_work_that_is_being_tokenized_has_not_run_out():
    queue = flooded_queue()
    queue.admit(Job(10.0), 20)
    assert queue.take(0)[0] == []
    assert queue.flooded


def run(share: float, seconds: float = 30.0, lead: float = 1.0) -> tuple[float, float, float]:
    """Texts at a constant rate to a machine of RATE: p99 of those due after ``lead``, refused, and tokens, as shares.

    Lengths and the machine's speed from batch to batch are random, of a fixed seed.
    """
    rng, queue = np.random.default_rng(0), Queue(BOUNDS, RATE)
    lengths = rng.integers(5, 40, int(share * RATE / 22 * seconds)).tolist()
    coming = deque(zip(np.linspace(0, seconds, len(lengths)), lengths, strict=True))
    due, times, refused, done, end, batch = {}, [], 0, 0, np.inf, []
    while coming or batch:
        now = min(end, coming[0][0] if coming else np.inf)
        if now == end:
            times += [now - due[job] for job, *_ in batch if due[job] > lead]
            batch, end = [], np.inf
        else:
            job, length = Job(now + 60), coming.popleft()[1]
            due[job] = now
            try:
                queue.admit(job, 2 * length)  # the estimate of English, by its letters
                queue.put(job, [length])
            except Busy:
                refused += now > lead
        if not batch and (batch := queue.take(now)[0]):
            tokens = sum(job.lengths[0] for job, *_ in batch)
            end, done = now + tokens / RATE * rng.uniform(0.9, 1.1), done + tokens
    return float(np.quantile(times, 0.99)), refused / (len(times) + refused), done / (RATE * now)


def test_a_flood_does_not_make_the_admitted_wait():
    """Each waits for the batch that runs and is in the next one; the machine is busy."""
    p99, refused, tokens = run(3.0)
    assert p99 < 2.5 * BOUNDS.batch
    assert 0.6 < refused < 0.7
    assert tokens > 0.98


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95])
def test_what_can_be_computed_is_not_refused(share):
    p99, refused, _ = run(share)
    assert refused == 0
    assert p99 < 2.5 * BOUNDS.batch
