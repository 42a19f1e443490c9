"""Actors of a fit without a cluster: what each does, and how many there may be."""

from __future__ import annotations

import os

import pytest

from fastflow.errors import UsageError

ray = pytest.importorskip("ray")

from fastflow.integrations.ray_fit import Pool, Worker  # noqa: E402


class Task:
    opened = 0

    def open(self):
        self.opened += 1
        return len


def test_an_actor_opens_its_task_once_with_its_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    task = Task()
    worker = Worker(3)
    assert [worker.work(task, ["a"]), worker.work(task, ["a", "b"])] == [1, 2]
    assert task.opened == 1
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("given", "actors"), [((1, None, 1), 7), ((2, None, 1), 3), ((2, None, 0), 4), ((1, 3, 1), 3), ((8, None, 0), 1)]
)
def test_all_cpus_but_those_that_read_are_taken(monkeypatch, given, actors):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    assert Pool(*given)._actors == actors


@pytest.mark.parametrize("given", [(1, 8, 1), (4, 2, 1), (9, None, 0)])
def test_more_actors_than_the_cluster_has_cpus_would_wait_for_ever(monkeypatch, given):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    with pytest.raises(UsageError, match=r"the cluster has 8 CPUs, and this takes . actors of ., and . to read"):
        Pool(*given)


@pytest.mark.parametrize(("given", "name"), [((0, 1, 1), "num_cpus"), ((1, 0, 1), "concurrency")])
def test_counts_are_whole_numbers(given, name):
    with pytest.raises(UsageError, match=f"{name} must be a whole number of at least 1, not 0"):
        Pool(*given)
