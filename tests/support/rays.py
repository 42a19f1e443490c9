"""A cluster of Ray for the tests, and actors with a fault."""

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastflow.integrations.ray import Embedder
from fastflow.integrations.ray_cluster import ending_what_failed

SETTINGS = {  # nobody is told of the cluster, and its token is not kept in the home directory
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_gcs_server_port_wait_time_s": "120",  # of a busy machine
}
CLIENTS = SETTINGS | {"RAY_AUTH_MODE": "token"}  # ray.init sets it for its own cluster, if nobody did before


@contextmanager
def patient() -> Iterator[None]:
    """Ray's 30 seconds for the start of a node are processor time, which its polling takes."""
    from ray._private import node

    node.time = SimpleNamespace(**vars(time) | {"monotonic": time.process_time})
    try:
        yield
    finally:
        node.time = time


@contextmanager
def started(cpus: int) -> Iterator[str]:
    """The address of a cluster of this machine with ``cpus`` CPUs; its files lie in a folder with a short name."""
    folder = tempfile.mkdtemp(prefix="ff-", dir="/tmp")  # a socket's path has 107 characters at most
    given = SETTINGS | {"RAY_TMPDIR": folder}
    before = {name: os.environ.get(name) for name in (*given, "RAY_AUTH_MODE")}
    os.environ.update(given)
    import ray
    import ray.data
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find the tests
    try:
        with patient(), ending_what_failed():
            ray.init(
                "local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000
            )
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)


class Mortal(Embedder):
    """An actor that SIGKILL ends in the middle of the batch with the text ``fatal``, the first time."""

    mark: Path
    fatal: str

    def __call__(self, table: Any) -> Any:
        out = super().__call__(table)
        if self.fatal in table.column(self._job.column).to_pylist() and not self.mark.exists():
            self.mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return out


class Failing(Embedder):
    """An actor that fails at the batch with the text ``fatal``, always, once a file of earlier rows is in ``kept``."""

    fatal: str
    kept: Path

    def __call__(self, table: Any) -> Any:
        if self.fatal in table.column(self._job.column).to_pylist():
            while not finished(self.kept):
                time.sleep(0.05)
            raise RuntimeError("an actor that fails")
        return super().__call__(table)


def failing(fatal: str, kept: Path) -> type[Failing]:
    return type("Failing", (Failing,), {"fatal": fatal, "kept": kept})


def finished(kept: Path) -> list[Path]:
    return [path for path in kept.glob("*.parquet") if ".pending." not in path.name]


class Dying:
    """A task of a fit whose worker SIGKILL ends at the shard with the text ``fatal``, the first time."""

    def __init__(self, task: Any, mark: Path, fatal: str) -> None:
        self._task, self._mark, self._fatal = task, mark, fatal

    def open(self) -> Any:
        work = self._task.open()

        def dying(texts: list[str]) -> Any:
            if self._fatal in texts and not self._mark.exists():
                self._mark.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return work(texts)

        return dying


def mortal(mark: Path, fatal: str) -> type[Mortal]:
    return type("Mortal", (Mortal,), {"mark": mark, "fatal": fatal})
