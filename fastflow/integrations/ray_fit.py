"""A fit to a Dataset of Ray: the driver deals out shards in order, actors count, embed and sum them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
import ray.data

from fastflow.errors import UsageError
from fastflow.integrations.ray import check_address, cluster
from fastflow.integrations.ray_cluster import check_column, sentences, texts_of
from fastflow.stages.vectors import check_count

if TYPE_CHECKING:
    from ray.data import Dataset

AHEAD = 2  # shards that wait for each actor
RETRIES = 3  # of a shard whose actor died


class Worker:
    """The actor: it opens the task once, and does it with one shard after another.

    The task comes with each shard: Ray cannot restart an actor whose constructor's arguments it has dropped.
    """

    def __init__(self, threads: int) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self._work: Any = None

    def work(self, task: Any, texts: list[str]) -> Any:
        if self._work is None:
            self._work = task.open()
        return self._work(texts)


class Pool:
    """``train.data.sharded.Workers`` of at most ``concurrency`` actors with ``num_cpus`` CPUs each.

    None for ``concurrency`` takes all CPUs of the cluster but ``reading``, those that read a Dataset. A shard whose
    actor died is done again by the next one. Raises a UsageError if the cluster has too few CPUs.
    """

    def __init__(self, num_cpus: int, concurrency: int | None, reading: int) -> None:
        check_count("num_cpus", num_cpus)
        check_count("concurrency", concurrency)
        there = int(ray.cluster_resources().get("CPU", 0))
        self._threads, self._actors = num_cpus, concurrency or max(1, (there - reading) // num_cpus)
        if self._actors * num_cpus + reading > there:
            raise UsageError(
                f"the cluster has {there} CPUs, and this takes {self._actors} actors of {num_cpus}, and {reading} to "
                "read: lower concurrency or num_cpus"
            )

    def __call__(self, task: Any, shards: Iterator[list[str]]) -> Iterator[Any]:
        actor: Any = ray.remote(
            num_cpus=self._threads, max_restarts=-1, max_task_retries=RETRIES, scheduling_strategy="SPREAD"
        )(Worker)
        pool = [actor.remote(self._threads) for _ in range(self._actors)]
        shared, waiting = ray.put(task), deque[Any]()
        try:
            for at, texts in enumerate(shards):
                if len(waiting) == AHEAD * len(pool):
                    yield ray.get(waiting.popleft())
                waiting.append(pool[at % len(pool)].work.remote(shared, texts))
            while waiting:
                yield ray.get(waiting.popleft())
        finally:
            for each in pool:
                ray.kill(each)


@contextmanager
def workers(address: str) -> Iterator[Pool]:
    """An actor on each CPU of the cluster at ``address``; their failures are sentences."""
    check_address(address)
    with cluster(address), sentences():
        yield Pool(1, None, reading=0)


def texts_in_order(dataset: Dataset, column: str) -> Callable[[], Iterator[str]]:
    """The texts of ``column`` in the order of the dataset, as often as they are asked for."""
    schema = dataset.schema()
    if schema is not None:
        check_column(schema.names, schema.types, column, "")

    def texts() -> Iterator[str]:
        options = dataset.context.execution_options
        before, options.preserve_order = options.preserve_order, True
        try:
            batches = dataset.select_columns([column]).iter_batches(batch_size=8192, batch_format="pyarrow")
            for batch in batches:
                yield from texts_of(batch, column)
        finally:
            options.preserve_order = before

    return texts
