"""Making the next thing while the last one is in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """``items`` in their order, each made by another thread while the one before is in use; errors come in their turn.

    One item at most is made too early: a caller that stops half-way leaves no more than that unused.
    """
    from concurrent.futures import ThreadPoolExecutor  # only a GPU backend overlaps: others start without it

    with ThreadPoolExecutor(1, thread_name_prefix="fastflow-ahead") as worker:
        coming = worker.submit(_next, items)
        while got := coming.result():
            coming = worker.submit(_next, items)
            yield got[0]


def _next(items: Iterator[Item]) -> tuple[()] | tuple[Item]:
    """(item,), or () at the end: StopIteration does not travel through a future."""
    for item in items:
        return (item,)
    return ()
