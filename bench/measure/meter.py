"""Processor time and memory of calls, which the wall clock does not show."""

from __future__ import annotations

from threading import Event, Thread
from time import process_time
from typing import Any

from fastflow.bench.measure.machine import read_text
from fastflow.bench.measure.timing import Call, cpu_watch

EVERY = 0.02  # seconds between two looks at the memory


class Meter:
    """A watch for ``alternate`` that notes the processor seconds of each call, the anonymous MB that it adds, and its
    result.
    """  # fmt: skip

    def __init__(self) -> None:
        self.seconds, self.memory, self.found = dict[Call, list[float]](), dict[Call, float](), dict[Call, Any]()

    def watch(self, call: Call, _: int) -> float:
        """Time one call."""
        done, levels, start = Event(), [read_anonymous()], process_time()

        def sample() -> None:
            while not done.wait(EVERY):
                levels.append(read_anonymous())

        thread = Thread(target=sample)
        thread.start()
        try:
            wall = cpu_watch(lambda: self.found.update({call: call()}), 1)
        finally:
            done.set()
            thread.join()
        self.seconds.setdefault(call, []).append(process_time() - start)
        self.memory[call] = max(self.memory.get(call, 0.0), max(levels) - levels[0])
        return wall


def read_anonymous() -> float:
    """Return the anonymous MB of this process; 0 on other systems than Linux."""
    return float((read_text("/proc/self/status").partition("RssAnon:")[2].split() or ["0"])[0]) / 1e3
