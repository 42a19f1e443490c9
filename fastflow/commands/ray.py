"""``fastflow embed --ray``: which of the command's options go together with a cluster of Ray."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import click
from click.core import ParameterSource

from fastflow.console import say
from fastflow.errors import UsageError
from fastflow.progress import counted

TAKEN = (
    "inputs", "ray", "output", "model", "format", "text_field", "id_field", "keep", "dtype", "precision", "dim",
    "normalize", "threads", "device", "prompt", "prompt_name", "quiet",
)  # fmt: skip
INSTEAD = {
    "resume": "leave it out, or leave out --ray and use --shard I/N --resume",
    "shard": "Ray divides the rows itself, so leave out one of them",
    "fit": "fit once with fastflow-train, then give -m MODEL",
}


def embed_on_ray(context: click.Context) -> None:
    """The command ``fastflow embed`` with ``--ray``; raises a UsageError that names an option it does not have."""
    from fastflow.integrations.ray_cluster import check_address

    given = context.params
    check_address(given["ray"])
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in TAKEN and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            why = f": {INSTEAD.get(name, 'leave out one of them')}"
            raise UsageError(f"{parameter.opts[-1]} does not work with --ray{why}")
    if given["device"] == "cuda":
        raise UsageError("--ray computes on CPUs: leave out --device cuda")
    if given["output"] is None:
        raise UsageError("--ray writes a folder of Parquet files: -o FOLDER")
    if given["format"] not in (None, "parquet"):
        raise UsageError(f"--ray reads Parquet, not {given['format']}: leave out --ray, or convert the input")
    for path in given["inputs"]:
        if given["format"] is None and PurePath(path).suffix not in ("", ".parquet"):
            raise UsageError(f"--ray reads Parquet, and {path} is not: leave out --ray, or convert the input")
    _embed(given)


def _embed(given: dict[str, Any]) -> None:
    from fastflow.files.read.records import Layout
    from fastflow.files.read.sources import expanded
    from fastflow.files.run import parse_keep
    from fastflow.integrations.ray_cluster import cluster, ray_data

    layout = Layout("parquet", given["text_field"], given["id_field"], keep=parse_keep(given["keep"]))
    ray_data("fastflow embed --ray")
    from fastflow.integrations.ray_files import ROW, embed_parquet

    options = {"precision": given["precision"], "truncate_dim": given["dim"]}
    options |= {"normalize_embeddings": given["normalize"]}
    options |= {name: given[name] for name in ("prompt", "prompt_name")}
    output = url_of(given["output"])
    rows = embed_parquet(
        expanded(given["inputs"]), output, layout, given["model"], options, given["dtype"],
        1 if given["threads"] is None else given["threads"], cluster(given["ray"], given["quiet"]),
    )  # fmt: skip
    if not given["quiet"]:
        say(f"fastflow: {counted(rows, 'texts')}, numbered in the column {ROW!r}; written to {output}")


def url_of(path: PurePath) -> str:
    """The name of a folder as it was typed: a path has lost a slash of a URL such as s3://bucket/folder."""
    return re.sub(r"^(\w+):/", lambda scheme: f"{scheme[0]}//" if scheme[1] == "file" else f"{scheme[0]}/", str(path))
