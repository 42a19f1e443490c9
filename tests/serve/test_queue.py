"""The rules of the queue, by a clock that stands still: who is admitted, who comes next, who is never computed."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.serve.queue import LONGEST, Bounds, Busy, Queue, QueuedJob, TooMuch
from fastflow.serve.requests import refuse_busy, refuse_for_now

BOUNDS = Bounds(batch=0.1, least=50, most=400, turn=25, wait=1.0, work=10.0)
RATE, BATCH = 1000.0, 100  # tokens a second, and of a batch


def make_queue() -> Queue:
    return Queue(BOUNDS, RATE)


def admitted(queue: Queue, lengths: list[int], deadline: float = 10.0) -> QueuedJob:
    job = QueuedJob(deadline)
    queue.admit(job, sum(lengths))
    queue.put(job, lengths)
    return job


EVENTS = st.one_of(
    st.tuples(st.just("admit"), st.integers(1, 600), st.integers(1, 40)),  # an estimate, and the deadline
    st.tuples(st.just("put"), st.integers(0, 9), st.lists(st.integers(1, 150), min_size=1, max_size=60)),
    st.tuples(st.just("drop"), st.integers(0, 9), st.none()),
    st.tuples(st.just("take"), st.integers(0, 3), st.none()),
)


def check_counts(queue: Queue, jobs: dict[QueuedJob, int]) -> None:
    """The counts of ``queue`` are those of the texts that it has not handed out; ``jobs``: with their estimates."""
    left = {job: sum(job.lengths[job.next :]) if job.lengths else estimate for job, estimate in jobs.items()}
    longest = {job: max(BOUNDS.turn, *job.lengths[job.next : job.next + 1], 0) for job in jobs}
    turns = {job: min(left[job], longest[job]) for job in jobs}
    assert (queue.work, queue.turns) == (sum(left.values()), sum(turns.values()))
    assert queue.jobs == len(jobs)


def check_batch(queue: Queue, batch: list[tuple[QueuedJob, int, int]], now: float, seen: dict[QueuedJob, int]) -> None:
    """Each text comes once and in its order, in time, and all fit into the batch but for a text that is longer."""
    tokens = sum(sum(job.lengths[start:stop]) for job, start, stop in batch)
    assert tokens <= queue.batch or [stop - start for _, start, stop in batch] == [1]
    assert queue.running == tokens
    for job, start, stop in batch:
        assert (job.deadline > now, start < stop, start) == (True, True, seen.get(job, 0))
        seen[job] = stop


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(EVENTS, max_size=60))
def test_whatever_comes_counts_and_batches_are_right(events):
    queue, jobs, seen, now = make_queue(), {}, {}, 0
    for what, number, value in events:
        job = list(jobs)[number % len(jobs)] if jobs else None
        if what == "admit":
            new = QueuedJob(now + value)
            with contextlib.suppress(Busy, TooMuch):
                tokens = math.ceil(number * queue.longer)
                queue.admit(new, number)
                jobs[new] = tokens
        elif what == "put" and job and not job.lengths:
            queue.put(job, value)
        elif what == "drop" and job:
            queue.drop(job)
            queue.drop(job)  # a second time changes nothing
            queue.put(job, [5])  # nor does its tokens' end
        elif what == "take":
            now += number
            batch, expired = queue.take(now)
            check_batch(queue, batch, now, seen)
            assert all(each.gone and each.deadline <= now for each in expired)
        jobs = {each: estimate for each, estimate in jobs.items() if not each.gone}
        check_counts(queue, jobs)


LATER = [(4, 0), (5, 0), (0, 5), (1, 5)]


@pytest.mark.parametrize(
    ("jobs", "batches"),
    [
        pytest.param([[5] * 100], [[(0, 0, 20)]], id="a list alone fills the batch"),
        pytest.param([[5] * 1000, [10]], [[(0, 0, 5), (1, 0, 1), (0, 5, 18)]], id="a short request after a long list"),
        pytest.param([[5] * 100] * 2, [[(0, 0, 5), (1, 0, 5), (0, 5, 10), (1, 5, 10)]], id="two lists share a batch"),
        pytest.param([[20], [60], [150]], [[(0, 0, 1), (1, 0, 1)], [(2, 0, 1)], []], id="larger than a turn or batch"),
        pytest.param(
            [[5] * 40] * 6, [[(i, 0, 5) for i in range(4)], [(i, n, n + 5) for i, n in LATER]], id="six lists"
        ),
    ],
)
def test_who_is_in_each_batch(jobs, batches):
    queue = make_queue()
    admitted_jobs = [admitted(queue, lengths) for lengths in jobs]
    found = [[(admitted_jobs.index(job), *texts) for job, *texts in queue.take(0)[0]] for _ in batches]
    assert found == batches


def fill(queue: Queue, tokens: int) -> None:
    for _ in range(tokens // BOUNDS.turn):
        admitted(queue, [BOUNDS.turn])


REFUSALS = {  # the lists that wait, with their texts of 5 tokens; the request; seconds until it may return, and why
    "a text, of a second of turns": ([(41, 5)], 10, 1, "--max-queue-seconds"),  # half a second is left then
    "a list, by the same rule": ([(40, 5), (1, 200)], 1000, 2, "--max-queue-seconds"),
    "a text, while lists take their turns": ([(41, 20)], 10, 4, "--max-queue-seconds"),  # 4.1 seconds of work
    "a list after a long one": ([(1, 1900), (1, 2)], 1000, 6, "--timeout"),  # both are finished in 5 s then
    "a long list after another": ([(36, 5), (1, 1600)], 8000, 8, "--timeout"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_names_when_to_return_and_the_option(case):
    queue = make_queue()
    lists, tokens, seconds, option = REFUSALS[case]
    for count, texts in lists:
        for _ in range(count):
            admitted(queue, [5] * texts)  # each is accepted, a single text after a long list too
    with pytest.raises(Busy) as refused:
        queue.admit(QueuedJob(10), tokens)
    assert (refused.value.seconds, refused.value.option) == (seconds, option)
    if option == "--max-queue-seconds":  # known before a request is read
        with pytest.raises(Busy):
            queue.check_wait()
    else:
        queue.check_wait()


def test_work_that_is_being_computed_counts():
    queue = make_queue()
    fill(queue, 1025)
    queue.take(0)  # 100 tokens are running
    queue.take(0)  # and now 100 others
    queue.admit(QueuedJob(10), 10)
    fill(queue, 75)
    with pytest.raises(Busy):
        queue.admit(QueuedJob(10), 10)


def test_the_estimate_of_tokens_is_learnt():
    queue = make_queue()
    for _ in range(40):
        job = QueuedJob(10)
        queue.admit(job, 60)
        queue.put(job, [20])
        queue.take(0)
    queue.admit(QueuedJob(10), 60)
    assert queue.work == pytest.approx(20, abs=1)


def test_a_request_that_can_never_be_finished_in_time_is_refused_for_good():
    with pytest.raises(TooMuch) as refused:
        make_queue().admit(QueuedJob(10), 10_001)
    assert refused.value.seconds == pytest.approx(10.0, abs=0.01)


def test_the_waiting_work_is_bounded_whatever_comes():
    queue, refused = make_queue(), 0
    for i in range(5000):
        try:
            admitted(queue, [5] * (1 + (i * 37) % 300))
        except Busy:
            refused += 1
    assert refused > 0
    assert queue.work <= (BOUNDS.work + BOUNDS.wait) * RATE
    assert queue.turns <= BOUNDS.wait * RATE + BOUNDS.turn


def test_the_batch_follows_the_speed_between_its_bounds():
    queue = make_queue()
    assert queue.batch == BATCH
    queue.learn(24, 1e-6)  # too small to tell
    queue.learn(100, 0.0)  # a clock that stands
    assert queue.rate == RATE
    for _ in range(50):
        queue.learn(200, 0.1)
    assert queue.rate == pytest.approx(2000, rel=1e-3)
    assert queue.batch == pytest.approx(200, abs=1)
    for _ in range(50):
        queue.learn(100, 10.0)
    assert queue.batch == BOUNDS.least
    for _ in range(50):
        queue.learn(100, 0.001)
    assert queue.batch == BOUNDS.most


@pytest.mark.parametrize("texts", [5, 20, 31])
def test_the_speed_is_followed_however_far_it_falls(texts):
    """Batches become shorter than a turn of the first speed, and are measured all the same, or it would never rise."""
    queue = Queue(dataclasses.replace(BOUNDS, least=32, turn=100, wait=1e6, work=1e6), 4 * RATE)
    admitted(queue, [texts] * 10_000)
    for speed in (0.01 * RATE, 3 * RATE):
        for _ in range(80):
            queue.take(0)
            queue.learn(queue.running, queue.running / speed)
        assert queue.rate == pytest.approx(speed, rel=0.01)


# ---- more comes than is computed: the machine stays busy, and a refused request is accepted when it returns

PATIENCE, FLOOD_TURN = 10.0, 25


def make_flooded(wait: float = PATIENCE) -> Queue:
    return Queue(Bounds(batch=0.1, least=50, most=400, turn=FLOOD_TURN, wait=wait, work=60.0), RATE)


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
            job = QueuedJob(now + 60)
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
    coming = burst(seconds * speed, size)
    found = simulate(make_flooded(), coming, speed)
    assert (len(found.times), found.failed) == (len(coming), 0)
    assert found.busy > (0.9 if speed == 1 else 0.55)


def test_a_burst_within_a_clients_patience_is_never_refused():
    assert simulate(make_flooded(), burst(9.0), retries=0).failed == 0


def test_a_request_is_refused_exactly_if_it_would_wait_too_long():
    """Earlier refusals do not count: the machine never idles while it refuses a request that it can answer."""
    queue = make_flooded(1.0)
    for _ in range(3):
        for _ in range(41):
            job = QueuedJob(60.0)
            queue.admit(job, FLOOD_TURN)
            queue.put(job, [FLOOD_TURN])
        with pytest.raises(Busy):
            queue.check_wait()
        while queue.wait > 1.0:
            queue.take(0.0)
        queue.check_wait()
        while queue.take(0.0)[0]:
            pass


def test_refused_requests_come_back_one_after_the_other():
    """Half of the wait is left for the first; requests with the same Retry-After are at most a second's work."""
    queue, told = make_flooded(), []
    for _ in range(401):
        queue.admit(QueuedJob(60.0), FLOOD_TURN)
    for _ in range(400):
        with pytest.raises(Busy) as refused:
            queue.admit(QueuedJob(60.0), FLOOD_TURN)
        told.append(refused.value.seconds)
    assert told == sorted(told)
    assert (told[0], told[-1]) == (6, 15)  # 5 s until half of 10 s, and 400 requests of 25 tokens
    assert max(told.count(second) for second in set(told)) <= RATE / FLOOD_TURN


def test_promises_end_when_the_machine_idles():
    queue = make_flooded()
    job = QueuedJob(60.0)
    queue.admit(job, 20_000)
    for _ in range(500):
        with pytest.raises(Busy) as refused:
            queue.admit(QueuedJob(60.0), 50_000)
    assert refused.value.seconds == LONGEST, "clients obey no longer one"
    queue.drop(job)
    queue.take(0.0)
    assert queue.promised.work == 0


def steadily(share: float, seconds: float = 30.0) -> list[tuple[float, list[int]]]:
    lengths = np.random.default_rng(0).integers(5, 40, int(share * RATE / 22 * seconds)).tolist()
    return [(at / len(lengths) * seconds, [length]) for at, length in enumerate(lengths)]


@pytest.mark.parametrize("wait", [0.5, 2.0], ids="{} s".format)
def test_in_a_lasting_flood_an_answer_takes_the_time_that_is_allowed(wait):
    found = simulate(make_flooded(wait), steadily(3.0), retries=0)
    assert np.quantile(found.times, 0.99) < wait + 0.25
    assert 0.6 < found.failed / (found.failed + len(found.times)) < 0.7
    assert found.busy > 0.98


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95])
def test_what_can_be_computed_is_not_refused(share):
    found = simulate(make_flooded(), steadily(share), retries=0)
    assert found.failed == 0
    assert np.quantile(found.times, 0.99) < 0.25


@pytest.mark.parametrize(("wait", "told"), [(-1.0, 1), (0.0, 1), (0.2, 1), (1.0, 1), (1.01, 2), (59.5, 60)])
def test_a_refused_client_comes_back_after_a_second_or_more(wait, told):
    refusals = [refuse_busy(Busy(wait, "--timeout")), refuse_for_now("unhealthy", "it ends", wait)]
    assert [each.headers for each in refusals] == [{"retry-after": str(told)}] * 2
    assert all(f": try again in {told} s" in each.message for each in refusals)
