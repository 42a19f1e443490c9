"""Start a server with a key for an attack, and talk to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Finding

import fastflow

from support.servers import Process, serving_process

MIB = 2**20
KEY = "right-key-of-this-test"
TEXTS = [f"{who} {what} near the {where} {n}" for who in ("the dog", "a bird", "nobody") for what in ("runs", "sings")
         for where in ("river", "market", "old house") for n in range(8)]  # fmt: skip
GETS = ("/info", "/v1/models", "/health", "/metrics")


@contextmanager
def serve(folder: Path, *options: object) -> Iterator[Process]:
    """A server that must run until the end."""
    (folder / "keys").write_text(KEY)
    with serving_process("--api-key-file", "keys", *options, folder=folder) as server:
        threading.Thread(target=server.process.stderr.read, daemon=True).start()
        yield server
        if server.process.poll() is not None:
            raise Finding(f"the server ended with {server.process.returncode}")


def measure_memory(server: Process) -> float:
    """Return the MiB that the server holds."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text(encoding="ascii").split()[1]) * 4096 / MIB


def embed_here() -> list[list[float]]:
    """Return the vectors of TEXTS without a server."""
    with fastflow.Runtime() as runtime:
        return runtime.encode(TEXTS, normalize_embeddings=True)


def write_head(path: str, length: int, key: str = KEY) -> bytes:
    return (
        f"{'GET' if path in GETS else 'POST'} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
        f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode("latin-1")


async def ask(port: int, path: str, body: bytes, key: str = KEY) -> tuple[int, bytes]:
    """Return (status, body) of one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(write_head(path, len(body), key) + body)
        await writer.drain()
        top, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        return int(top.split(b" ", 2)[1]), rest
    finally:
        writer.close()
