"""The engine with a model that counts the texts it computes, and a clock that the test sets."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from fastflow.model.tokenizer import Tokens
from fastflow.serve import ServerSettings
from fastflow.serve.engine import BatchEngine, EmbedResult, Gone
from fastflow.serve.model import BatchModel, EmbedOptions
from fastflow.serve.requests import Refused

RATE, BATCH = 1000.0, 100  # tokens a second, and of a batch


class Counting(BatchModel):
    """A token a character, at most 50; the vector of a text is its length and its first character."""

    max_length, batch_tokens = 50, BATCH

    def __init__(self) -> None:
        self.computed: list[str] = []  # first characters, in order
        self.batches: list[int] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        self.slow: Callable[[], None] = lambda: None

    def tokenize(self, texts, prompt):
        rows = [list((prompt + text).encode()) for text in texts]
        cut = [i for i, row in enumerate(rows) if len(row) > self.max_length]
        rows = [row[: self.max_length] for row in rows]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return Tokens(np.array([i for row in rows for i in row], np.int32), offsets, np.array(cut, np.int64))

    def embed(self, tokens, how):
        self.entered.set()
        assert self.gate.wait(20)
        self.slow()
        heads = tokens.ids[tokens.offsets[:-1]]
        self.batches.append(len(tokens.ids))
        self.computed += [chr(head) for head in heads]
        return np.stack([np.diff(tokens.offsets), heads], axis=1).astype(np.float32)


class Desk:
    def __init__(self) -> None:
        self.now, self.model = 0.0, Counting()
        settings = ServerSettings(max_queue=1.0, timeout=10.0, tokenizer_threads=1)
        self.engine = BatchEngine(self.model, settings, RATE)
        self.engine.clock = lambda: self.now

    def ask(self, *texts: str, cut: bool = True, left: asyncio.Future[Any] | None = None) -> asyncio.Task[EmbedResult]:
        gone = (lambda: left) if left is not None else asyncio.get_running_loop().create_future
        return asyncio.ensure_future(self.engine.embed(list(texts), EmbedOptions(), cut, gone))

    async def until(self, true: Callable[[], bool]) -> None:
        for _ in range(4000):
            if true():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it did not come to that")

    async def hold(self) -> asyncio.Task[EmbedResult]:
        """A request that is being computed until ``release``."""
        self.model.gate.clear()
        self.model.entered.clear()
        first = self.ask("first")
        await self.until(self.model.entered.is_set)
        return first

    def release(self) -> None:
        self.model.gate.set()

    async def waiting(self, jobs: int) -> None:
        await self.until(lambda: len(self.engine.queue._waiting) == jobs)


def with_desk(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def run() -> None:
        desk = Desk()
        desk.engine.start()
        try:
            await asyncio.wait_for(test(desk), 30)
        finally:
            desk.release()
            desk.engine.stop()

    def wrapped() -> None:
        asyncio.run(run())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


@with_desk
async def test_a_list_of_many_pieces_and_batches_is_whole(desk):
    seen = []
    desk.engine.observe = lambda *what: seen.append(what)
    await desk.ask("abc", "de")
    assert seen == [(2, 5, 0.0)]
    texts = [chr(97 + i % 26) * (1 + i % 7) for i in range(300)]
    done = await desk.ask(*texts, "d" * 60)
    assert done.vectors.tolist() == [*([len(text), ord(text[0])] for text in texts), [50, 100]]
    assert (done.lengths.tolist(), done.cut) == ([*map(len, texts), 50], 1)
    assert max(desk.model.batches) <= BATCH
    assert len(desk.model.batches) > 5


@with_desk
async def test_requests_that_wait_are_computed_together(desk):
    first = await desk.hold()
    tasks = [desk.ask(text) for text in ("aa", "bb", "cc")]
    await desk.waiting(3)
    desk.release()
    assert [(await task).vectors.tolist() for task in tasks] == [[[2, 97]], [[2, 98]], [[2, 99]]]
    await first
    assert desk.model.batches == [5, 6]


@with_desk
async def test_a_single_text_comes_before_the_rest_of_a_list(desk):
    first = await desk.hold()
    long = desk.ask(*["l" * 10] * 60)
    await desk.waiting(1)
    short = desk.ask("s")
    await desk.waiting(2)
    desk.release()
    await asyncio.gather(first, long, short)
    assert desk.model.computed.index("s") == 3  # after the first request and one turn of the list


@with_desk
async def test_a_client_that_goes_while_its_texts_are_tokenized_is_not_computed(desk):
    left = asyncio.get_running_loop().create_future()
    task = desk.ask(*["gone"] * 500, left=left)
    await asyncio.sleep(0)
    left.set_result(None)
    with pytest.raises(Gone):
        await task
    assert desk.model.computed == []


@with_desk
async def test_an_expired_request_is_503_and_not_computed(desk):
    first = await desk.hold()
    late = desk.ask("late")
    await desk.waiting(1)
    desk.now = 10.0
    desk.release()
    with pytest.raises(Refused) as refused:
        await late
    assert refused.value.kind == "expired"
    await first
    assert desk.model.computed == ["f"]


@with_desk
async def test_the_deadline_is_kept_even_when_the_model_is_stuck(desk):
    desk.engine.queue.bounds = dataclasses.replace(desk.engine.queue.bounds, work=0.05)
    first = await desk.hold()
    with pytest.raises(Refused) as refused:
        await first
    assert refused.value.kind == "expired"
    desk.now = 100.0
    assert desk.engine.is_stuck(60)
    desk.release()
    await desk.until(lambda: not desk.engine.is_stuck(60))


@with_desk
async def test_too_much_waiting_work_is_429_for_a_text_and_for_a_list(desk):
    first = await desk.hold()
    tasks = [desk.ask("x" * 50) for _ in range(40)]  # one second of turns
    await desk.waiting(40)
    for texts in (["a"], ["a"] * 100):
        with pytest.raises(Refused) as refused:
            await desk.ask(*texts)
        assert refused.value.kind == "overloaded"
        assert refused.value.headers == {"retry-after": "2"}  # 2,100 tokens, 500 of which are left then
    desk.release()
    await asyncio.gather(first, *tasks)
    assert (await desk.ask("a")).vectors.shape == (1, 2)


@with_desk
async def test_the_speed_is_learned_from_full_batches_alone(desk):
    await desk.ask("a")
    assert desk.engine.queue.rate == RATE
    first = await desk.hold()
    full = desk.ask(*["b" * 50] * 2)
    await desk.waiting(1)
    desk.model.entered.clear()
    desk.model.slow = lambda: setattr(desk, "now", desk.now + 0.05)  # twice as fast as was thought
    desk.release()
    await asyncio.gather(first, full)
    assert RATE < desk.engine.queue.rate < 2 * RATE


@with_desk
async def test_a_compute_thread_that_has_not_begun_or_has_ended_is_stuck(desk):
    assert Desk().engine.is_stuck(60)
    assert not desk.engine.is_stuck(60)
    desk.engine.stop()
    assert desk.engine.is_stuck(60)


@pytest.mark.parametrize(("rate", "batch", "turn"), [(1e3, 100, 25), (1.0, 32, 1), (1e9, 8192, 2048)])
def test_a_batch_is_a_tenth_of_a_second_even_where_a_text_may_be_longer(rate, batch, turn):
    model = Counting()
    model.max_length, model.batch_tokens = 512, 8192
    queue = BatchEngine(model, ServerSettings(), rate).queue
    assert (queue.batch, queue.bounds.turn) == (batch, turn)
