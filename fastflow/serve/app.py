"""The Starlette application, its pages and errors, and the guard before every route."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hmac import compare_digest
from importlib.resources import files
from ipaddress import ip_address
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastflow.serve.answers import answer_embeddings
from fastflow.serve.engine import Gone
from fastflow.serve.requests import STRING, Refused, Values, refuse_for_now
from fastflow.serve.routes import Endpoint, declare, describe
from fastflow.serve.service import Service

GONE = 499  # nginx' status for a closed connection
REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")
HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:]*))(?::\d*)?")
NO_FILE = "no file is loaded to search: start the server with --search FILE.db"
LEFT_OUT = {  # route of TEI -> why this server lacks it
    "/embed_all": "calibration is made for the vector of a text, and not for one of each token",
    "/embed_sparse": "the model gives dense vectors",
    "/rerank": "no model that scores pairs is loaded: start the server with --reranker DIR",
    "/predict": "the model has no classes",
    "/decode": "token ids are not taken; POST /tokenize gives the text of each id",
    "/vertex": "Google's envelope is not read; send its instances as inputs to POST /embed",
}
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
    "/favicon.ico": ("favicon.svg", "image/svg+xml"),
}
access = logging.getLogger("fastflow.access")
POLICY = (  # our script and style sheet only; text cannot become markup
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def make_app(service: Service) -> Starlette:
    """Make the Starlette application of ``service``."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        engines = [engine for each in service.every for engine in each.engines]
        for engine in engines:
            engine.start()
        yield
        for engine in engines:
            engine.stop()
        if service.searcher is not None:
            service.searcher.close()

    async def answer_description(service: Service, request: Request, asked: Values) -> Response:
        return JSONResponse(app.state.description)

    async def answer_file(service: Service, request: Request, asked: Values) -> Response:
        path = request.url.path
        return Response(pages[path], media_type=f"{FILES[path][1]}; charset=utf-8", headers=HEADERS)

    paths, folder = ("/openapi.json", "/api-doc/openapi.json"), files("fastflow.serve") / "page"
    endpoints = [*declare(service), Endpoint(paths, "This description", answer_description, {"type": "object"})]
    pages = {path: (folder / name).read_text(encoding="utf-8") for path, (name, _) in FILES.items()}
    pages["/docs"] = fill_docs(pages["/docs"], endpoints)
    for path, (_, media) in FILES.items():
        endpoints.append(Endpoint((path,), "The page", answer_file, STRING, media=media, public=True))
    methods: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        for path in endpoint.paths:
            methods.setdefault(path, {})[endpoint.method] = endpoint
    others = {each: {path: one for one in declare(each) for path in one.paths} for each in service.every[1:]}
    app = Starlette(
        routes=[_make_route(service, path, found, others) for path, found in methods.items()],
        middleware=[Middleware(Guard, service=service, endpoints=endpoints)],
        exception_handlers={Refused: _refuse, HTTPException: _refuse_path, Exception: _fail}
        | dict.fromkeys((ClientDisconnect, Gone), _leave),
        lifespan=lifespan,
    )  # fmt: skip
    app.router.redirect_slashes = False
    app.state.service, app.state.description = service, describe(endpoints, bool(service.settings.keys))
    return app


def _make_route(
    service: Service, path: str, methods: dict[str, Endpoint], others: dict[Service, dict[str, Endpoint]]
) -> Route:
    async def answer(request: Request) -> Response:
        endpoint, chosen = methods["POST" if request.method == "POST" else "GET"], service
        if endpoint.body is None:
            return await endpoint.answer(service, request, {})
        body = await service.read(request)
        if others and endpoint.answer is answer_embeddings and isinstance(body, dict):
            chosen = service.choose(body.get("model"))
            endpoint = endpoint if chosen is service else others[chosen][path]
        assert endpoint.body is not None  # noqa: S101
        return await endpoint.answer(chosen, request, endpoint.body.read("", body))

    return Route(path, answer, methods=[*methods])


def fill_docs(page: str, endpoints: Sequence[Endpoint]) -> str:
    """Fill the page at /docs: each route with its fields."""
    posts = gets = ""
    for each in endpoints:
        paths = [path.replace(":path", "") for path in each.paths]
        if each.body is None:
            links = " ".join(f'<a href="{path[1:].format(name="default")}">{path}</a>' for path in paths)
            gets += f"<tr><th>{links}</th><td>{each.summary}</td></tr>\n"
            continue
        names = each.body.fields.items()
        rows = "".join(f"<tr><th><code>{name}</code></th><td>{field.meaning}</td></tr>\n" for name, field in names)
        same = " ".join(f"<code>POST {path}</code> is the same." for path in paths[1:])
        curl = f"curl -s http://127.0.0.1:8080{paths[0]} -H 'Content-Type: application/json'"
        curl += f" -d '{json.dumps(each.example)}'"
        posts += (
            f"<section>\n<h2>POST {paths[0]}</h2>\n<p>{each.summary}. {same}</p>\n<pre><code>{curl}</code></pre>\n"
            f"<table>\n{rows}</table>\n</section>\n"
        )
    return page.replace("<!-- posts -->\n", posts).replace("<!-- gets -->\n", gets)


async def _refuse(request: Request, refused: Any) -> Response:
    request.app.state.service.metrics.count("te_request_failure", err=refused.kind)
    return refused.make_response(request.url.path)


async def _refuse_path(request: Request, error: Any) -> Response:
    path = f"{request.url.path:.80}"
    if error.status_code == 405:
        message = f"{path} takes {(error.headers or {}).get('Allow', 'another method')}, not {request.method:.20}"
        return await _refuse(request, Refused("method", message, headers=error.headers))
    message = f"{path} is no route of this server; see /openapi.json"
    if path == "/search":
        message = NO_FILE
    elif path in LEFT_OUT:
        message = f"{path} is a route of TEI that this server leaves out: {LEFT_OUT[path]}"
    return await _refuse(request, Refused("path", message, headers=error.headers))


async def _fail(request: Request, error: Any) -> Response:
    return await _refuse(request, Refused("backend", f"the server failed: {type(error).__name__}"))


async def _leave(request: Request, error: Any) -> Response:
    return Response(status_code=GONE)


class Guard:
    """Refuses requests before their routes, and counts the running ones."""

    def __init__(self, app: ASGIApp, service: Service, endpoints: Sequence[Endpoint]) -> None:
        self.app, self.service = app, service
        self._public = {path for each in endpoints if each.public for path in each.paths}
        self._engines = {path: each.computed for each in endpoints if each.computed is not None for path in each.paths}
        self._paths = {path for each in endpoints for path in each.paths}
        self._keys = [key.encode("ascii") for key in service.settings.keys]
        self._hosts = () if self._keys else service.settings.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, headers, status = time.perf_counter(), dict(scope["headers"]), GONE
        given = headers.get(b"x-request-id", b"")
        name = given.decode() if REQUEST_ID.fullmatch(given) else uuid4().hex

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        self.service.active += 1
        try:
            self._check(scope["method"], scope["path"], headers)
            await self.app(scope, receive, reply)
        except Refused as refused:
            self.service.metrics.count("te_request_failure", err=refused.kind)
            await refused.make_response(scope["path"])(scope, receive, reply)
        finally:
            self.service.active -= 1
            self.service.bodies -= scope.get("state", {}).get("held", 0)
            self._record(scope, status, time.perf_counter() - began, name)

    def _record(self, scope: Scope, status: int, seconds: float, name: str) -> None:
        route = self._name_route(scope["path"])
        self.service.metrics.count("fastflow_requests", route=route, status=str(status))
        self.service.metrics.duration.labels(route).observe(seconds)
        entry = {"method": scope["method"], "route": route, "status": status, "seconds": round(seconds, 6), "id": name}
        access.info("%(method)s %(route)s %(status)s %(seconds)s s, request %(id)s", entry)

    def _name_route(self, path: str) -> str:
        """Return the declared path; a path of a client's own would be a new label each time."""
        if path.startswith("/v1/models/"):
            return "/v1/models/{name}"
        return path if path in self._paths else "other"

    def _check(self, method: str, path: str, headers: dict[bytes, bytes]) -> None:
        if self._hosts and b"host" in headers and not self._is_own(headers[b"host"].decode("latin-1").lower()):
            message = "this server answers to localhost alone: use http://localhost, or set an API key for other names"
            raise Refused("host", message)
        engine = self._engines.get(path) if method == "POST" else None
        if path in self._public and engine is None:
            return
        if self._keys and not self._has_key(headers.get(b"authorization", b"")):
            message = "the API key is missing or wrong: send the header Authorization: Bearer KEY"
            raise Refused("key", message, headers={"www-authenticate": "Bearer"})
        if self.service.draining:
            raise refuse_for_now("unhealthy", "the server is going down", 1, connection="close")
        length = headers.get(b"content-length", b"")
        if length.isdigit():
            self.service.check_size(int(length))
        if engine is not None and (engine or len(self.service.every) == 1):  # else the body names the queue
            self.service.engines[engine].check_wait()

    def _is_own(self, host: str) -> bool:
        found = HOST.fullmatch(host)  # against DNS rebinding: a foreign page could read every answer
        name = (found["v6"] or found["name"] or "") if found else ""
        return name in self._hosts or is_loopback(name)

    def _has_key(self, header: bytes) -> bool:
        scheme, _, given = header.partition(b" ")
        given = given.strip()
        matches = [compare_digest(given, key) for key in self._keys]  # compare all keys, in equal time
        return scheme.lower() == b"bearer" and any(matches)


def is_loopback(address: str) -> bool:
    """Say whether ``address`` leads only to this machine."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
