"""Real servers for tests: uvicorn on a free port in a thread, or the command in a process; and requests to them."""

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

import fastflow
from fastflow.serve import ServerSettings
from fastflow.serve.app import make_app
from fastflow.serve.model import PairScorer, ServedModel
from fastflow.serve.protocol import make_protocol
from fastflow.serve.searcher import Searcher
from fastflow.serve.server import Server, listen
from fastflow.serve.service import Service

from support.places import USERS

WAIT = 30.0  # seconds that anything may take before a test fails


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """A server that runs at ``host`` and ``port``; ``service`` is its state, if it is in this process."""

    def __init__(self, host: str, port: int, service: Any = None, app: Any = None) -> None:
        self.host, self.port, self.service, self.app = host, port, service, app
        self.url = f"http://{host}:{port}"

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=WAIT)

    def ask(self, method: str, path: str, body: Any = None, headers: Any = None, raw: Any = None) -> Answer:
        """One request on a connection of its own; ``body`` is sent as JSON, ``raw`` as it is."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT)
        with contextlib.closing(connection):
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            sent = {"content-type": "application/json"} if data is not None else {}
            connection.request(method, path, data, sent | (headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, headers)


def request(path: str, body: bytes, length: int | None = None) -> bytes:
    """A request of a JSON body, as it is sent; ``length``: the one that it claims to have."""
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


class Gate:
    """A call of ``real`` that waits until the gate opens; ``seen``: the arguments of each call."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real, self.seen = real, list[Any]()
        self.opened, self.entered = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.seen.append(arguments)
        self.entered.set()
        assert self.opened.wait(WAIT)
        return self.real(*arguments)


def until(true: Callable[[], bool]) -> None:
    """Return when ``true()`` is; fail the test if that takes WAIT seconds."""
    end = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)


@contextlib.contextmanager
def serving(
    model: Any = None, names: tuple[str, ...] = (), rate: float | None = None, search: Path | None = None,
    reranker: Path | None = None, others: Sequence[ServedModel] = (), **settings: Any,
) -> Iterator[Running]:  # fmt: skip
    """A server of ``model`` (None: the one in the package; or a ServedModel) in a thread; ``search``: its file."""
    if not hasattr(model, "embed"):
        model = ServedModel(fastflow.Runtime(model, "cpu"), names)
    searcher = None if search is None else Searcher(search, model.runtime, 1)
    scorer = None if reranker is None else PairScorer(fastflow.Reranker(reranker, threads=1))
    service = Service(model, ServerSettings(names=names, **settings), rate, searcher, scorer, others)
    app, ready = make_app(service), threading.Event()
    with listen("127.0.0.1", 0, None) as bound:
        port = bound.getsockname()[1]
        config = uvicorn.Config(
            app, http=make_protocol(service), ws="none", lifespan="on", log_config=None,
            access_log=False, proxy_headers=False, timeout_graceful_shutdown=1, loop="asyncio",
        )  # fmt: skip
        server = Server(config, service, ready.set)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        assert ready.wait(WAIT), "the server did not start"
        try:
            yield Running("127.0.0.1", port, service, app)
        finally:
            server.should_exit = True
            thread.join(WAIT)
    assert not thread.is_alive(), "the server did not stop"


class Process(Running):
    def __init__(self, process: subprocess.Popen[str], said: list[str], host: str, port: int) -> None:
        super().__init__(host, port)
        self.process, self.said = process, said


@contextlib.contextmanager
def serving_process(*options: object, folder: Path, env: dict[str, str] | None = None) -> Iterator[Process]:
    """The command with ``options``, on a free port if they name no --uds; killed at the end if it still runs."""
    command = [sys.executable, "-c", "from fastflow.cli import main; main()", "serve", *map(str, options)]
    command += [] if "--uds" in options else ["--port", "0"]
    process = subprocess.Popen(
        command, cwd=folder, env=USERS | (env or {}) | {"PYTHONUNBUFFERED": "1"}, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "serving" in line:
                break
        else:
            raise AssertionError(f"the server did not start: {''.join(said)}")
        found = re.search(r"http://(.+):(\d+)", said[-1])
        host, port = (found[1], int(found[2])) if found else ("", 0)
        yield Process(process, said, host, port)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def in_parallel(calls: list[Any]) -> list[Any]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: call(), calls))
