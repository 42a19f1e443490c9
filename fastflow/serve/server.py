"""The server's process: socket, uvicorn, signals and log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import math
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from fastflow.errors import FastflowError
from fastflow.serve.app import is_loopback, make_app
from fastflow.serve.protocol import make_protocol
from fastflow.serve.service import Service

BACKLOG = 4096  # waiting connections at most
ASK = 1.0  # seconds for open connections to send a request, at shutdown
SPARE = 256  # open files in addition to connections
PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))  # level -> number in journald


class Server(uvicorn.Server):
    """uvicorn's server; SIGTERM and Ctrl-C let the running requests finish."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready, self._end = service, ready, math.inf  # _end: when draining ends

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            notify("READY=1")
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals; Ctrl-C stays ignored if a shell's & began the process so."""
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with super().capture_signals():
            if ignored:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.draining:
            # uvicorn reports the lifespan that it cancels as an error
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self.force_exit = self.should_exit = True
            return
        self._end = time.monotonic() + self._service.settings.drain
        self._service.draining = True
        notify("STOPPING=1")

    async def on_tick(self, counter: int) -> bool:
        if self._service.draining and (not self._service.active or time.monotonic() > self._end):
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer arrived requests, then stop: closing the socket would reset their connections."""
        waiting = [] if self.force_exit else await self._stop_listening(sockets or [])
        loop, http = asyncio.get_running_loop(), self.config.http_protocol_class
        given = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        for connection in waiting:
            connection.setblocking(False)
            await loop.connect_accepted_socket(lambda: http(**given), connection)
        end = time.monotonic() + ASK
        await asyncio.sleep(0.01)  # reads requests that have arrived
        while not self.force_exit and time.monotonic() < end and self._is_waiting_for_requests():
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    async def _stop_listening(self, sockets: list[socket.socket]) -> list[socket.socket]:
        loop, waiting = asyncio.get_running_loop(), []
        for bound in sockets:
            loop.remove_reader(bound)
        await asyncio.sleep(0)  # accepted connections join their server
        for bound in sockets:
            with contextlib.suppress(OSError):  # no connection waits, or no file descriptor is free
                while True:
                    waiting.append(bound.accept()[0])
        for server in self.servers:
            server.close()
        return waiting

    def _is_waiting_for_requests(self) -> bool:
        connections: Iterable[Any] = self.server_state.connections
        return any(connection.cycle is None for connection in connections)


def run(service: Service, bound: socket.socket, ready: Callable[[], None], log_format: str = "none") -> None:
    """Serve on ``bound`` until a signal; ``ready`` is called when requests are taken.

    ``log_format``: text or json logs each request, none only warnings.
    """
    config = uvicorn.Config(
        make_app(service), http=make_protocol(service), ws="none", lifespan="on", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=75, timeout_graceful_shutdown=5, loop="asyncio",
        backlog=BACKLOG,
    )  # fmt: skip
    allow_files(service.settings.max_connections + SPARE)
    _configure_log(log_format)
    server = Server(config, service, ready)
    asyncio.run(server.serve(sockets=[bound]))
    if not server.started:
        raise FastflowError("the server could not start; the log says why")


def allow_files(count: int) -> None:
    """Allow ``count`` open files, or the most that the system lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        while most > soft:
            try:
                return resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            except ValueError:  # macOS has a limit that it does not report
                most //= 2


def listen(host: str, port: int, uds: Path | None) -> socket.socket:
    """Open a socket at an address, or at the path ``uds`` for user and group; raises a FastflowError."""
    if uds is not None:
        return _listen_at(uds)
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, number)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        way_out = "stop the server there, or choose another --port" if taken else "choose another --host or --port"
        raise FastflowError(
            f"the server cannot listen at {host} port {port}: {_read_reason(error)}; {way_out}"
        ) from error
    return bound


def is_local(bound: socket.socket) -> bool:
    """Say whether ``bound`` listens only to this machine."""
    return bound.family != socket.AF_UNIX and is_loopback(bound.getsockname()[0])


def _listen_at(path: Path) -> socket.socket:
    bound, taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), False
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            taken = _answers(path)
            if not taken:
                path.unlink()  # left by a killed server
        before = os.umask(0o117)
        try:
            bound.bind(str(path))
        finally:
            os.umask(before)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        way_out = "stop the server there, or choose another --uds" if taken else "choose another --uds"
        raise FastflowError(f"the server cannot listen at {path}: {_read_reason(error)}; {way_out}") from error
    return bound


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _read_reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def notify(state: str) -> None:
    """Send ``state`` to systemd if it asks (Type=notify)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)


class LogFormatter(logging.Formatter):
    """Formats a line of the log, with journald's priority before it."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"fastflow: {super().format(record)}"
        if "JOURNAL_STREAM" not in os.environ:
            return line
        level = next((number for least, number in PRIORITIES if record.levelno >= least), 7)
        return "\n".join(f"<{level}>{part}" for part in line.split("\n"))


class JsonFormatter(logging.Formatter):
    """Formats a line of the log as a JSON object; a request's has its fields."""

    def format(self, record: logging.LogRecord) -> str:
        said = record.args if isinstance(record.args, dict) else {"message": super().format(record)}
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return json.dumps({"time": f"{when}.{int(record.msecs):03}Z", "level": record.levelname.lower(), **said})


def _configure_log(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else LogFormatter())
    for name in ("fastflow.serve", "uvicorn.error", "fastflow.access"):
        found = logging.getLogger(name)
        found.handlers, found.propagate = [handler], False
        found.setLevel(logging.INFO if name == "fastflow.access" and log_format != "none" else logging.WARNING)
