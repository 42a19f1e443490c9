"""The rules of the queue, by a clock that stands still: who is admitted, who comes next, who is never computed."""

from __future__ import annotations

import contextlib
import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.serve.queue import LONGEST, Bounds, Busy, Job, Queue, TooMuch

BOUNDS = Bounds(batch=0.1, least=50, most=400, turn=25, wait=1.0, work=10.0)
RATE, BATCH = 1000.0, 100  # tokens a second, and of a batch


def make_queue() -> Queue:
    return Queue(BOUNDS, RATE)


def admitted(queue: Queue, lengths: list[int], deadline: float = 10.0) -> Job:
    job = Job(deadline)
    queue.admit(job, sum(lengths))
    queue.put(job, lengths)
    return job


EVENTS = st.one_of(
    st.tuples(st.just("admit"), st.integers(1, 600), st.integers(1, 40)),  # an estimate, and the deadline
    st.tuples(st.just("put"), st.integers(0, 9), st.lists(st.integers(1, 150), min_size=1, max_size=60)),
    st.tuples(st.just("drop"), st.integers(0, 9), st.none()),
    st.tuples(st.just("take"), st.integers(0, 3), st.none()),
)


def check_counts(queue: Queue, jobs: dict[Job, int]) -> None:
    """The counts of ``queue`` are those of the texts that it has not handed out; ``jobs``: with their estimates."""
    left = {job: sum(job.lengths[job.next :]) if job.lengths else estimate for job, estimate in jobs.items()}
    longest = {job: max(BOUNDS.turn, *job.lengths[job.next : job.next + 1], 0) for job in jobs}
    turns = {job: min(left[job], longest[job]) for job in jobs}
    assert (queue.work, queue.turns) == (sum(left.values()), sum(turns.values()))
    assert queue.jobs == len(jobs)


def check_batch(queue: Queue, batch: list[tuple[Job, int, int]], now: float, seen: dict[Job, int]) -> None:
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
    """Requests are admitted, tokenized, cancelled and expire in any order, between batches."""
    queue, jobs, seen, now = make_queue(), {}, {}, 0
    for what, number, value in events:
        job = list(jobs)[number % len(jobs)] if jobs else None
        if what == "admit":
            new = Job(now + value)
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


@pytest.mark.parametrize(
    ("jobs", "batches"),
    [
        pytest.param([[5] * 100], [[(0, 0, 20)]], id="a list alone fills the batch"),
        pytest.param([[5] * 1000, [10]], [[(0, 0, 5), (1, 0, 1), (0, 5, 18)]], id="a short request after a long list"),
        pytest.param([[5] * 100] * 2, [[(0, 0, 5), (1, 0, 5), (0, 5, 10), (1, 5, 10)]], id="two lists share a batch"),
        pytest.param([[20], [60], [150]], [[(0, 0, 1), (1, 0, 1)], [(2, 0, 1)], []], id="larger than a turn or batch"),
    ],
)
def test_who_is_in_each_batch(jobs, batches):
    queue = make_queue()
    admitted_jobs = [admitted(queue, lengths) for lengths in jobs]
    found = [[(admitted_jobs.index(job), *texts) for job, *texts in queue.take(0)[0]] for _ in batches]
    assert found == batches


def test_many_clients_get_equal_turns():
    queue = make_queue()
    jobs = [admitted(queue, [5] * 40) for _ in range(10)]
    for _ in range(5):  # 20 turns, two each
        queue.take(0)
    assert {job.next for job in jobs} == {10}


def fill(queue: Queue, tokens: int) -> None:
    """Requests of one turn until that many tokens wait."""
    for _ in range(tokens // BOUNDS.turn):
        admitted(queue, [BOUNDS.turn])


@pytest.mark.parametrize(("lengths", "seconds"), [([10], 1), ([5] * 200, 2)], ids=["one text", "a list"])
def test_one_rule_for_a_text_and_for_a_list(lengths, seconds):
    """Half a second of work is left when it shall come back."""
    queue = make_queue()
    fill(queue, 1000)  # one second, which is allowed
    admitted(queue, lengths)
    with pytest.raises(Busy) as refused:
        queue.admit(Job(10), sum(lengths))
    assert (refused.value.seconds, refused.value.option) == (seconds, "--max-queue-seconds")


def test_work_that_is_being_computed_counts():
    queue = make_queue()
    fill(queue, 1025)
    queue.take(0)  # 100 tokens are running
    queue.take(0)  # and now 100 others
    queue.admit(Job(10), 10)
    fill(queue, 75)
    with pytest.raises(Busy):
        queue.admit(Job(10), 10)


def test_a_long_list_does_not_shut_out_single_texts():
    queue = make_queue()
    admitted(queue, [5] * 1900)  # 9.5 seconds
    admitted(queue, [10])
    with pytest.raises(Busy) as refused:
        queue.admit(Job(10), 1000)
    assert (refused.value.seconds, refused.value.option) == (6, "--timeout")  # both are finished in 5 s then


def test_a_list_of_most_of_the_time_is_admitted_as_soon_as_little_waits():
    queue = make_queue()
    fill(queue, 900)
    admitted(queue, [5] * 1600)  # 8 of 10 seconds
    with pytest.raises(Busy):
        queue.admit(Job(10), 5 * 1600)


def test_the_estimate_of_tokens_is_learnt():
    queue = make_queue()
    for _ in range(40):
        job = Job(10)
        queue.admit(job, 60)
        queue.put(job, [20])
        queue.take(0)
    queue.admit(Job(10), 60)
    assert queue.work == pytest.approx(20, abs=1)


def test_a_request_that_can_never_be_finished_in_time_is_refused_for_good():
    with pytest.raises(TooMuch) as refused:
        make_queue().admit(Job(10), 10_001)
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


def test_clients_obey_every_retry_after():
    queue = make_queue()
    fill(queue, 1025)
    for _ in range(5000):
        with pytest.raises(Busy) as refused:
            queue.admit(Job(10), 600)
        assert 1 <= refused.value.seconds <= LONGEST


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


def test_a_full_queue_is_known_before_a_request_is_read():
    queue = make_queue()
    fill(queue, 1000)
    queue.check_wait()
    admitted(queue, [10])
    with pytest.raises(Busy):
        queue.check_wait()


def test_a_refusal_names_the_time_in_which_the_work_of_lists_is_done():
    queue = make_queue()
    for _ in range(41):
        admitted(queue, [5] * 20)  # turns of 25 tokens each, and 4.1 seconds of work
    with pytest.raises(Busy) as refused:
        queue.admit(Job(10), 10)
    assert refused.value.seconds == 4
