"""A stand-in for a CUDA device that computes on the CPU, for tests and dry runs of code built on ``device``.

It is as lazy as a device may be: queued work is done only when something that is waited for needs it. So host memory
that is overwritten too early, or read too early, and a stream that does not wait for another, give wrong results here
every time, and not only once in a while. Fresh memory is full of values that show.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from fastflow.backends.gpu.graphs import CapturedGraph, Tensor, Work

GARBAGE = -12345  # the value of integers before they are written; floats are NaN


class OutOfMemory(RuntimeError):
    pass


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.happened = stream, False


class Stream:
    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: deque[tuple[str, Any]] = deque()

    def advance(self, event: Event) -> None:
        while not event.happened:
            kind, what = self.queue.popleft()
            if kind == "run":
                what()
            elif kind == "wait":
                what.stream.advance(what)
            else:
                what.happened = True


class StandIn:
    """A device as ``device`` defines it. ``room``: the most tokens that one piece of work may be for, None for any.

    ``log`` lists the requests, as (kind, ...): the number of the stream for run, record and wait.
    ``graph_bytes``: the bytes that every graph claims to keep.
    """

    name = "cpu stand-in"
    OutOfMemory: type[BaseException] = OutOfMemory

    def __init__(self, room: int | None = None, graph_bytes: int = 1 << 20) -> None:
        import torch

        self._torch, self.room, self.graph_bytes = torch, room, graph_bytes
        self.log: list[tuple[Any, ...]] = []
        self._streams = 0

    def allocate_pinned(self, size: int, dtype: str) -> Tensor:
        value = GARBAGE if dtype.startswith("int") else float("nan")
        return self._torch.full((size,), value, dtype=getattr(self._torch, dtype))

    empty = allocate_pinned

    def stream(self) -> Any:
        self._streams += 1
        return Stream(self._streams - 1)

    def run(self, stream: Any, work: Work, tokens: int = 0) -> None:
        self._admit(tokens)
        self.log.append(("run", stream.number, tokens))
        stream.queue.append(("run", work))

    def record(self, stream: Any) -> Any:
        event = Event(stream)
        self.log.append(("record", stream.number))
        stream.queue.append(("mark", event))
        return event

    def wait(self, stream: Any, event: Any) -> None:
        self.log.append(("wait", stream.number, event.stream.number))
        stream.queue.append(("wait", event))

    def synchronize(self, event: Any) -> None:
        self.log.append(("synchronize", event.stream.number))
        event.stream.advance(event)

    def capture(self, stream: Any, work: Work, tokens: int = 0) -> CapturedGraph:
        """``work`` is done once, as on a GPU; replayed, it is done again with the values that its buffers then hold."""
        self._admit(tokens)
        self.log.append(("capture", stream.number, tokens))
        self.synchronize(self.record(stream))
        work()
        return CapturedGraph(work, self.graph_bytes)

    def replay(self, stream: Any, graph: CapturedGraph) -> None:
        self.run(stream, graph.replay)
        self.synchronize(self.record(stream))

    def release(self) -> None:
        self.log.append(("release",))

    def _admit(self, tokens: int) -> None:
        if self.room is not None and tokens > self.room:
            raise self.OutOfMemory(f"{tokens} tokens do not fit")
