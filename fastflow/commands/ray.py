"""Options and tasks of ``fastflow embed --ray``."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from fastflow.commands.options import describe_output
from fastflow.commands.shards import arguments
from fastflow.console import say
from fastflow.errors import UsageError
from fastflow.progress import format_count

REFUSED = {
    "shard": "Ray makes the parts itself, so leave out one of them",
    "fit": "fit once with fastflow-train, then give -m MODEL",
    "save_model": "fit once with fastflow-train, then give -m MODEL",
    "only_new": "leave out one of them",
    "json_file": "leave out one of them",
}


def check_options(context: click.Context) -> None:
    """Raise a UsageError for a malformed address, and for options that exclude --ray."""
    from fastflow.integrations.ray import check_address

    check_address(context.params["ray"])
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in REFUSED and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[-1]} does not work with --ray: {REFUSED[name]}")
    if context.params["device"] == "cuda":
        raise UsageError("--ray computes on CPUs: leave out --device cuda")
    if context.params["output"] is None:
        raise UsageError("--ray needs an output: -o OUT, in a folder that every node has")
    if "-" in context.params["inputs"]:
        raise UsageError("--ray reads the inputs on every node, which cannot be standard input: give a file")


def embed_on_ray(context: click.Context, paths: list[str], replaced: bool) -> None:
    """Embed the checked inputs ``paths`` by tasks on a cluster."""
    from fastflow.integrations.ray import embed_on_cluster

    given = context.params
    threads = 1 if given["threads"] is None else given["threads"]
    given["inputs"] = tuple(map(os.path.abspath, paths))  # a worker has another working directory
    for name in ("model", "cache"):
        if given[name] is not None and os.path.exists(given[name]):
            given[name] = os.path.abspath(given[name])
    words = arguments("ray", "threads")
    target: Path = given["output"]
    rows, parts = embed_on_cluster(words, target, given["ray"], threads, given["resume"], given["quiet"])
    if not given["quiet"]:
        made = f"{format_count(rows, 'texts')} in {format_count(parts, 'parts')}"
        say(f"fastflow: {made}{describe_output(target, replaced)}")
