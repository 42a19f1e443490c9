"""The HTTP server, which needs the extra ``serve``: its settings and API keys."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fastflow.errors import FastflowError

KEY_VARIABLE = "FASTFLOW_API_KEY"
MIB = 2**20


@dataclass(frozen=True)
class ServerSettings:
    """Limits and options of a server; times are seconds."""

    keys: tuple[str, ...] = ()  # a request must have one, if there are any
    hosts: tuple[str, ...] = ()  # allowed names in Host if no keys are set; none: any
    names: tuple[str, ...] = ()  # further names of the model in requests
    any_model: bool = False
    truncate: bool = True
    max_queue: float = 10.0  # the longest wait for a request's first turn
    timeout: float = 60.0  # from a request's arrival to its answer
    max_inputs: int = 2048  # texts of a request
    max_body: int = 16 * MIB  # bytes of a request
    max_bodies: int = 64 * MIB  # bytes of all unanswered requests
    max_connections: int = 4096
    max_header: int = 64 * 1024  # bytes of the headers of a request
    receive: float = 30.0  # seconds until a whole request has arrived
    send: float = 60.0  # until a client that does not read is disconnected
    drain: float = 60.0  # for running requests after SIGTERM
    batch: float = 0.1  # for computing one batch
    tokenizer_threads: int = 2


def read_keys(path: Path | None) -> tuple[str, ...]:
    """Read the keys of a file, one a line, and of FASTFLOW_API_KEY; raises a FastflowError for a wrong one."""
    found = {}
    if os.environ.get(KEY_VARIABLE) == "":
        raise FastflowError(f"the environment variable {KEY_VARIABLE} is empty: set it to a key, or unset it")
    if KEY_VARIABLE in os.environ:
        found[f"the environment variable {KEY_VARIABLE}"] = os.environ[KEY_VARIABLE]
    if path is not None:
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise FastflowError(f"the API keys in {path} cannot be read: {error}") from error
        of_file = {f"{path}, line {at}": line for at, line in enumerate(lines, 1) if line and not line.startswith("#")}
        if not of_file:
            raise FastflowError(f"{path} holds no API key; write one a line, or leave out --api-key-file")
        found |= of_file
    for where, key in found.items():
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise FastflowError(
                f"{where}: an API key must be printable ASCII without spaces, or no header can carry it"
            )
    return tuple(found.values())
