"""The Starlette application and its errors."""

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

from fastflow.serve import page, routes
from fastflow.serve.description import OPENAPI, describe
from fastflow.serve.engine import Gone
from fastflow.serve.limits import Guard
from fastflow.serve.refusals import Refused
from fastflow.serve.service import Service

GONE = 499  # nginx' status for a client that closed the connection


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


async def _answer_root(request: Request) -> Response:
    """Answer POST / as /embed: huggingface_hub only has the server's address."""
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
