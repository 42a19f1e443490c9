"""A request to the server, without a socket. Bytes: route, method and headers, then the body."""

import asyncio
import json
from typing import Any

import bases
from harness import Choices, Finding

from fastflow import Runtime
from fastflow.serve import ServerSettings
from fastflow.serve.app import make_app
from fastflow.serve.model import ServedModel
from fastflow.serve.service import Service

from support.routes import GETS, POSTS, UNKNOWN

CHOICES = 6  # bytes of an input that choose everything but the body
ROUTES = [*POSTS, *GETS, *UNKNOWN]
METHODS = ("POST", "POST", "POST", "GET", "PUT", "HEAD")
TYPES = (b"application/json", b"application/json; charset=utf-8", b"text/plain", b"")
ACCEPTED = (b"", b"application/octet-stream", b"application/json", b"*/*;q=0.x")
FAILED = (424, 500, 503)  # statuses of faults of the server's own
WAIT = 20  # seconds


class Server:
    def __init__(self) -> None:
        runtime = Runtime(bases.make()[0].parent / "table", "cpu", "float32", 1)
        settings = ServerSettings(max_inputs=16, max_body=1 << 20)
        self.app = make_app(Service(ServedModel(runtime, ()), settings, None, None))
        self.loop = asyncio.new_event_loop()
        self.lifespan = self.app.router.lifespan_context(self.app)
        self.loop.run_until_complete(self.lifespan.__aenter__())

    def ask(self, scope: dict[str, Any], parts: list[bytes]) -> tuple[int, bytes]:
        return self.loop.run_until_complete(asyncio.wait_for(self._ask(scope, parts), WAIT))

    async def _ask(self, scope: dict[str, Any], parts: list[bytes]) -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not parts:
                await asyncio.Event().wait()  # the client waits
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        starts = [message for message in sent if message["type"] == "http.response.start"]
        if len(starts) != 1:
            raise Finding(f"{len(starts)} answers to one request")
        return starts[0]["status"], b"".join(message.get("body", b"") for message in sent)


SERVER = Server()


def one(data: bytes) -> None:
    choices = Choices(data[:CHOICES].ljust(CHOICES, b"\0"))
    path, method, body = choices.choice(ROUTES), choices.choice(METHODS), data[CHOICES:]
    given = {
        b"content-type": choices.choice(TYPES), b"accept": choices.choice(ACCEPTED), b"host": b"localhost",
        b"content-length": choices.choice((str(len(body)).encode(), b"x", b"", b"99999999999")),
    }  # fmt: skip
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "server": ("localhost", 80),
        "client": ("127.0.0.1", 1), "headers": [(name, value) for name, value in given.items() if value],
    }  # fmt: skip
    cut = len(body) // 2 if choices.getrandbits(1) else len(body)
    status, answer = SERVER.ask(scope, [body[:cut], body[cut:]])
    if status in FAILED:
        raise Finding(f"{method} {path} answers {status}: {answer[:300]!r}")
    if status >= 400 and method != "HEAD":
        json.loads(answer)


def seeds() -> list[bytes]:
    bodies = [json.dumps(body).encode() for body in POSTS.values()]
    more = [
        {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8, "model": "x", "user": "u"},
        {"input": [[5, 6], [7]]}, {"inputs": ["a"], "normalize": False, "truncate": True, "prompt_name": None},
        {"pairs": [["a", "b"], ["c", "d"]], "texts": []},
    ]  # fmt: skip
    return [bytes([i, 0, 0, 0, 0, 0]) + (bodies[i] if i < len(bodies) else b"") for i in range(len(ROUTES))] + [
        bytes([i, 0, 0, 0, 0, 0]) + json.dumps(body).encode() for i, body in enumerate(more)
    ]
