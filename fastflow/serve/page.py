"""The pages at / and /docs."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
    "/favicon.ico": ("favicon.svg", "image/svg+xml"),
}
PATHS = tuple(FILES)
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


@cache
def read_file(name: str) -> bytes:
    """Read a file of the page."""
    return (files("fastflow.serve") / "page" / name).read_bytes()


async def answer_file(request: Request) -> Response:
    """Answer with a file of the page."""
    name, media = FILES[request.url.path]
    return Response(read_file(name), media_type=f"{media}; charset=utf-8", headers=HEADERS)


ROUTES = [Route(path, answer_file, methods=["GET"]) for path in PATHS if path != "/"]  # app.py serves /
