"""The Starlette application, its errors, and the guard before every route."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hmac import compare_digest
from ipaddress import ip_address
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fastflow.serve import page, routes
from fastflow.serve.description import OPENAPI, describe
from fastflow.serve.engine import Gone
from fastflow.serve.refusals import Refused
from fastflow.serve.service import Service

GONE = 499  # nginx' status for a closed connection
HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:]*))(?::\d*)?")
PUBLIC = ("/health", "/ping", "/metrics", *page.PATHS)  # need no API key, and answer while the server stops

# refused under overload, before their bodies are read
COMPUTED = ("/v1/embeddings", "/embeddings", "/embed", "/", "/invocations", "/similarity", "/search")


def make_app(service: Service) -> Starlette:
    """Make the Starlette application of ``service``."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.engine.start()
        yield
        service.engine.stop()
        if service.searcher is not None:
            service.searcher.close()

    description = describe(service)

    async def openapi(request: Request) -> Response:
        return JSONResponse(description)

    ours = [*routes.make_search_routes(service), *page.ROUTES, Route("/", _answer_root, methods=["GET", "POST"])]
    ours += [Route(path, openapi, methods=["GET"]) for path in OPENAPI]
    app = Starlette(
        routes=[*routes.ROUTES, *ours],
        middleware=[Middleware(Guard, service=service)],
        exception_handlers={
            Refused: _refuse, HTTPException: _refuse_path, ClientDisconnect: _leave, Gone: _leave,
            Exception: _fail,
        },
        lifespan=lifespan,
    )  # fmt: skip
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _answer_root(request: Request) -> Response:  # POST / is /embed, for huggingface_hub posts to /
    return await (routes.answer_embed if request.method == "POST" else page.answer_file)(request)


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
        message = routes.NO_FILE
    elif path in routes.LEFT_OUT:
        message = f"{path} is a route of TEI that this server leaves out: {routes.LEFT_OUT[path]}"
    return await _refuse(request, Refused("path", message, headers=error.headers))


async def _fail(request: Request, error: Any) -> Response:
    return await _refuse(request, Refused("backend", f"the server failed: {type(error).__name__}"))


async def _leave(request: Request, error: Any) -> Response:
    return Response(status_code=GONE)


class Guard:
    """Refuses requests before their routes, and counts the running ones."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self._keys = [key.encode("ascii") for key in service.settings.keys]
        self._hosts = () if self._keys else service.settings.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(scope["method"], scope["path"], dict(scope["headers"]))
        except Refused as refused:
            self.service.metrics.count("te_request_failure", err=refused.kind)
            await refused.make_response(scope["path"])(scope, receive, send)
            return
        self.service.active += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.service.active -= 1
            self.service.bodies -= scope.get("state", {}).get("held", 0)

    def _check(self, method: str, path: str, headers: dict[bytes, bytes]) -> None:
        if self._hosts and b"host" in headers and not self._is_own(headers[b"host"].decode("latin-1").lower()):
            message = "this server answers to localhost alone: use http://localhost, or set an API key for other names"
            raise Refused("host", message)
        if path in PUBLIC and (method, path) != ("POST", "/"):  # POST / is TEI's /embed
            return
        if self._keys and not self._has_key(headers.get(b"authorization", b"")):
            message = "the API key is missing or wrong: send the header Authorization: Bearer KEY"
            raise Refused("key", message, headers={"www-authenticate": "Bearer"})
        if self.service.draining:
            message = "the server is going down: try again in 1 s"
            raise Refused("unhealthy", message, headers={"connection": "close", "retry-after": "1"})
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.service.settings.max_body:
            message = f"the body is larger than {self.service.settings.max_body} bytes: send fewer texts at once"
            raise Refused("body", message, headers={"connection": "close"})
        if method == "POST" and path in COMPUTED:
            self.service.engine.check_wait()

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
