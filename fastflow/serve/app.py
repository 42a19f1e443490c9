"""The application: routes, the guard in front, and every failure in the words of its interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fastflow.serve import openai, page, search, tei
from fastflow.serve.description import OPENAPI, describe
from fastflow.serve.engine import Gone
from fastflow.serve.limits import Guard
from fastflow.serve.refusals import Refused
from fastflow.serve.service import Service

GONE = 499  # nginx' status for a client that closed the connection; nobody reads it


def make_app(service: Service) -> Starlette:
    """The ASGI application of ``service``; its engine runs from the application's start to its end."""

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

    ours = [*search.routes(service), *page.ROUTES, Route("/", _root, methods=["GET", "POST"])]
    ours += [Route(path, openapi, methods=["GET"]) for path in OPENAPI]
    app = Starlette(
        routes=[*openai.ROUTES, *tei.ROUTES, *ours],
        middleware=[Middleware(Guard, service=service)],
        exception_handlers={
            Refused: _refused, HTTPException: _http, ClientDisconnect: _gone, Gone: _gone,
            Exception: _failed,
        },
        lifespan=lifespan,
    )  # fmt: skip
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _root(request: Request) -> Response:
    """GET: the page. POST: TEI's /embed, for clients that have the server's address only, such as huggingface_hub's."""
    return await (tei.embed if request.method == "POST" else page.page)(request)


async def _refused(request: Request, refused: Any) -> Response:
    request.app.state.service.metrics.count("te_request_failure", err=refused.kind)
    return refused.response(request.url.path)


async def _http(request: Request, error: Any) -> Response:
    """No such path, or not with this method."""
    path = f"{request.url.path:.80}"
    if error.status_code == 405:
        message = f"{path} takes {(error.headers or {}).get('Allow', 'another method')}, not {request.method:.20}"
        return await _refused(request, Refused("method", message, headers=error.headers))
    message = f"{path} is no route of this server; see /openapi.json"
    if path == search.PATH:
        message = search.NO_FILE
    elif path in tei.LEFT_OUT:
        message = f"{path} is a route of TEI that this server leaves out: {tei.LEFT_OUT[path]}"
    return await _refused(request, Refused("path", message, headers=error.headers))


async def _failed(request: Request, error: Any) -> Response:
    """A fault of ours: the server's log has it with its traceback."""
    return await _refused(request, Refused("backend", f"the server failed: {type(error).__name__}"))


async def _gone(request: Request, error: Any) -> Response:
    return Response(status_code=GONE)
