"""Ray itself: whether it is installed, a cluster for a command, and failures of its nodes as sentences."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.files.read.parquet import is_text, plain_type
from fastflow.files.read.records import listed

if TYPE_CHECKING:
    import pyarrow as pa

KNOCK = 5.0  # seconds; Ray itself would try a closed port for minutes
ENDING = 5.0  # seconds that a killed process may take to be gone


def ray_data(purpose: str) -> Any:
    """The module ray.data; raises a FastflowError that names the command to install it."""
    try:
        import ray.data
    except ImportError as error:
        raise missing_extra("ray", str(error.name), purpose) from None
    return ray.data


@contextlib.contextmanager
def cluster(address: str, quiet: bool) -> Iterator[None]:
    """A connection to the cluster at ``address``; ``local`` starts one on this machine, which ends with the block."""
    data = ray_data("--ray")
    import ray

    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing here reports to anybody
    else:
        knock(address)
    try:
        with ending_what_failed():
            ray.init(address, include_dashboard=False if address == "local" else None, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises several kinds, and a bare Exception if its node does not start in time
        raise FastflowError(f"--ray {address}: {refusal(address, error)}") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it logs failures with their tracebacks; ours is one line
    data.DataContext.get_current().enable_progress_bars = not quiet and sys.stderr.isatty()
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def ending_what_failed() -> Iterator[None]:
    """If the block fails, kill the processes of Ray that it started: ``ray.shutdown`` ends only a whole start's."""
    import ray  # makes psutil importable, which is in its package
    import psutil  # isort: skip

    this, home = psutil.Process(), os.path.dirname(ray.__file__)
    before = this.children()
    try:
        yield
    except BaseException:
        left = []
        for child in this.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if child not in before and any(home in word for word in child.cmdline()):
                    left += [child, *child.children(recursive=True)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, ENDING)
        raise


def check_address(address: str) -> None:
    """Raise a UsageError unless ``address`` is local, auto or HOST:PORT."""
    if "://" in address:
        raise UsageError(
            f"--ray {address}: Ray Client is not supported: give HOST:6379, or start the command on the cluster"
        )
    if address not in ("local", "auto") and not re.fullmatch(r"[^-].*:\d+", address):
        raise UsageError(f"--ray needs ADDRESS or local, and {address!r} is neither: give HOST:PORT, auto or local")


def knock(address: str) -> None:
    """Raise a FastflowError if nothing listens at ``address``, which is HOST:PORT or auto."""
    from ray._private import services  # of no public module: where auto leads

    found = address
    try:
        if address == "auto":
            found = services.get_ray_address_from_environment(address, None)
        check_address(found)
        host, _, port = found.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()
    except (OSError, OverflowError, ValueError) as error:  # a ConnectionError is Ray's, too, where auto finds nothing
        place = "there" if found == address else f"at {found}"
        raise FastflowError(f"--ray {address}: no cluster of Ray answers {place}: {first_line(error)}") from error


def refusal(address: str, error: Exception) -> str:
    """The cause of an ``error`` of ``ray.init``, and what to do."""
    said = f"{type(error).__name__}: {error} {error.__cause__}"
    if "AuthenticationError" in said:
        if os.environ.get("RAY_AUTH_MODE") != "token":
            return "the cluster refuses this client without its token: set RAY_AUTH_MODE=token"
        return "the cluster refuses this client's token: copy ~/.ray/auth_token from its head, or set RAY_AUTH_TOKEN"
    what = "Ray did not start on this machine" if address == "local" else "no cluster of Ray answers there"
    return f"{what}: {first_line(error)}"


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """A failure on a node as the sentence that was raised there."""
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        raise FastflowError(sentence_of(str(error))) from error


def sentence_of(text: str) -> str:
    """The sentence of fastflow in the traceback of a node, or its last line."""
    ours = re.findall(r"^fastflow\.errors\.\w+: (.*)$", text, re.M)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ours[-1] if ours else f"Ray: {lines[-1] if lines else 'it gives no reason'}"


def first_line(error: Exception) -> str:
    """A reason for a message."""
    return str(error).split("\n")[0]


def check_column(names: list[str], types: list[Any], column: str, output_column: str) -> None:
    """Raise a FastflowError for a column that is not there or not text, and for an output column that is there."""
    if column not in names:
        raise FastflowError(f"the dataset has no column {column!r}; its columns are {listed(names)}")
    kind = types[names.index(column)]
    if not is_text(plain_type(kind)):
        raise FastflowError(f"the column {column!r} of the dataset is {kind}, not text")
    if output_column in names:
        raise UsageError(f"the dataset has a column {output_column!r} already: name another output_column")


def texts_of(table: pa.Table, column: str) -> list[str]:
    """The texts of a column; raises a FastflowError for a null, naming the row by its other values."""
    found = table.column(column)
    if not found.null_count:
        return list(found.to_pylist())
    row = found.to_pylist().index(None)
    beside = {name: str(table.column(name)[row])[:40] for name in table.schema.names if name != column}
    where = "".join(f" {name}={value}" for name, value in list(beside.items())[:4])
    raise FastflowError(
        f"the column {column!r} is null in {found.null_count} of {len(table)} rows of a batch, the first of them "
        f"beside{where or ' no other column'}; filter such rows out"
    )
