"""Ray itself: whether it is installed, a cluster for a command, and failures of its nodes as sentences."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from fastflow.errors import FastflowError, missing_extra


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
    try:
        ray.init(address, include_dashboard=False if address == "local" else None, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises several kinds, and a bare Exception where its node does not start in time
        raise FastflowError(f"--ray {address}: no cluster of Ray answers there: {first_line(error)}") from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it logs failures with their tracebacks; ours is one line
    data.DataContext.get_current().enable_progress_bars = not quiet and sys.stderr.isatty()
    try:
        yield
    finally:
        ray.shutdown()


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
