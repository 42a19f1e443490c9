"""``embed --ray`` and ``duplicates --ray``: parts and strips made by tasks on a cluster, then joined."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fastflow.cli import main
from fastflow.console import add_note
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.files.shards.manifest import ENDING, manifests, part_path
from fastflow.files.shards.merging import merge
from fastflow.progress import Progress

KNOCK = 5.0  # seconds; Ray would try a closed port for minutes
ENDING_S = 5.0  # seconds for a killed process to end
RETRIES = 3  # more attempts at a part if its worker dies


def embed_on_cluster(
    words: Sequence[str], target: Path, address: str, threads: int, resume: bool, quiet: bool, overwrite: bool = False
) -> tuple[int, int]:
    """Embed on a cluster of Ray with the options ``words`` and join the parts to ``target``: (rows, parts).

    Every node must see the folder TARGET.parts. ``resume`` keeps the rows of an earlier run. Each task has ``threads``
    CPUs. A FastflowError repeats a node's error.
    """
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", str(error.name), "fastflow embed --ray") from None
    folder = target.absolute().with_name(target.name + ".parts")
    before = manifests(folder) if resume and any(folder.glob(f"*{ENDING}")) else []
    with cluster(address):
        count = before[0].shard[1] if before else max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        if not before:
            _clear(folder)
        try:
            _make_parts(
                [*words, "--threads", str(threads), "--quiet", "--resume"], folder, target, count, threads, quiet
            )
        except BaseException as error:
            if any(folder.glob("part-*")):
                add_note(error, f"finished rows are in {folder}; the same command with --resume continues after them")
            raise
    found = merge(folder, target, shown=not quiet, overwrite=overwrite)
    _clear(folder)
    return found[0].total, count


def make_part(words: list[str]) -> None:
    """Run ``fastflow embed WORDS`` in this process, a worker of Ray."""
    embed = main.get_command(click.Context(main), "embed")
    assert embed is not None  # noqa: S101 (a name of the group)
    embed.main(words, prog_name="fastflow embed", standalone_mode=False)


def _make_parts(words: list[str], folder: Path, target: Path, count: int, threads: int, quiet: bool) -> None:
    import ray

    task = ray.remote(num_cpus=threads, max_retries=RETRIES, scheduling_strategy="SPREAD")(make_part)
    folder.mkdir(parents=True, exist_ok=True)
    waiting = []
    for number in range(1, count + 1):
        part = part_path(folder, (number, count), target.suffix)
        waiting.append(task.remote([*words, "--shard", f"{number}/{count}", "-o", str(part)]))
    with Progress("embed", count, "parts", shown=not quiet) as progress:
        for _ in _wait_for(waiting):
            progress.advance(1)


def _wait_for(waiting: list[Any]) -> Iterator[None]:
    import ray

    while waiting:
        done, waiting = ray.wait(waiting)
        try:
            ray.get(done)
        except ray.exceptions.RayError as error:
            raise FastflowError(find_sentence(str(error))) from error
        yield


def run_on_cluster(
    task: Callable[[str, int, int], None], place: str, numbers: Sequence[int], address: str, threads: int
) -> Iterator[None]:
    """Call ``task(place, number, threads)`` for all ``numbers`` on a cluster of Ray; yield after each."""
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", str(error.name), "fastflow duplicates --ray") from None
    with cluster(address):
        remote = ray.remote(num_cpus=threads, max_retries=RETRIES, scheduling_strategy="SPREAD")(task)
        yield from _wait_for([remote.remote(place, number, threads) for number in numbers])


def _clear(folder: Path) -> None:
    for path in folder.glob("part-*-of-*"):
        path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def cluster(address: str) -> Iterator[None]:
    """Connect to the cluster at ``address``; ``local`` starts one for the block."""
    import ray

    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    else:
        _knock(address)
    try:
        with kill_failed_start():
            ray.init(address, include_dashboard=False if address == "local" else None, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises several kinds
        raise FastflowError(f"--ray {address}: {describe_refusal(address, error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def kill_failed_start() -> Iterator[None]:
    """If the block fails, kill the Ray processes it started: ``ray.shutdown`` misses them."""
    import ray  # first, for it makes psutil importable
    import psutil  # isort: skip

    this, home = psutil.Process(), os.path.dirname(ray.__file__)
    before = this.children()
    try:
        yield
    except BaseException:
        left = []
        for child in this.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child not in before and any(home in word for word in child.cmdline()):
                    left += [child, *child.children(recursive=True)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, ENDING_S)
        raise


def check_address(address: str) -> None:
    """Check that ``address`` is local, auto or HOST:PORT; raises a UsageError."""
    if "://" in address:
        raise UsageError(
            f"--ray {address}: Ray Client is not supported: give HOST:6379, or start the command on the cluster"
        )
    if address not in ("local", "auto") and not re.fullmatch(r"[^-].*:\d+", address):
        raise UsageError(f"--ray needs ADDRESS or local, and {address!r} is neither: give HOST:PORT, auto or local")


def _knock(address: str) -> None:
    from ray._private import services  # no public module finds the cluster of auto

    found = address
    try:
        if address == "auto":
            found = services.get_ray_address_from_environment(address, None)
        check_address(found)
        host, _, port = found.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()
    except (OSError, OverflowError, ValueError) as error:  # Ray raises ConnectionError if auto finds no cluster
        place = "there" if found == address else f"at {found}"
        raise FastflowError(f"--ray {address}: no cluster of Ray answers {place}: {_first_line(error)}") from error


def describe_refusal(address: str, error: Exception) -> str:
    """Return cause and remedy of an ``error`` of ``ray.init``."""
    said = f"{type(error).__name__}: {error} {error.__cause__}"
    if "AuthenticationError" in said:
        if os.environ.get("RAY_AUTH_MODE") != "token":
            return "the cluster refuses this client without its token: set RAY_AUTH_MODE=token"
        return "the cluster refuses this client's token: copy ~/.ray/auth_token from its head, or set RAY_AUTH_TOKEN"
    place = "Ray did not start on this machine" if address == "local" else "no cluster of Ray answers there"
    return f"{place}: {_first_line(error)}"


def find_sentence(text: str) -> str:
    """Return fastflow's error sentence in a node's traceback, or its last line."""
    ours = re.findall(r"^fastflow\.[\w.]+: (.*)$", text, re.M)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ours[-1] if ours else f"Ray: {lines[-1] if lines else 'it gives no reason'}"


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]
