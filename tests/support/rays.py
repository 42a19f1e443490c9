"""A cluster of Ray for the tests, and a task with a fault."""

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

from fastflow.integrations.ray import kill_failed_start

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
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find the tests
    try:
        with patient(), kill_failed_start():
            ray.init(
                "local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000
            )
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)


def dying(mark: Path) -> Callable[[list[str]], None]:
    """``make_part``, whose worker SIGKILL ends after its first window, the first time that any part gets there."""

    def make(words: list[str]) -> None:
        from fastflow.files.write.partial import State
        from fastflow.integrations.ray import make_part

        save = State.save

        def save_and_die(state: State, rows: int, position: int) -> None:
            save(state, rows, position)
            with suppress(FileExistsError), mark.open("x") as out:
                out.write(f"{os.getpid()} {rows}")
                out.flush()
                os.kill(os.getpid(), signal.SIGKILL)

        State.save = save_and_die  # type: ignore[method-assign]
        try:
            make_part(words)
        finally:
            State.save = save  # type: ignore[method-assign]

    return make
