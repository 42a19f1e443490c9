"""The guard before every route."""

from __future__ import annotations

import re
from hmac import compare_digest
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from fastflow.serve import page
from fastflow.serve.refusals import Refused

if TYPE_CHECKING:
    from fastflow.serve.service import Service

HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:]*))(?::\d*)?")
PUBLIC = ("/health", "/ping", "/metrics", *page.PATHS)  # open without a key, and while the server stops

# under overload refused before their bodies are read
COMPUTED = ("/v1/embeddings", "/embeddings", "/embed", "/", "/invocations", "/similarity", "/search")


class Guard:
    """Refuses a request before its route, and counts the requests that it lets through."""

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
        """Return False for a foreign name that leads to this machine: its page could read every answer."""
        found = HOST.fullmatch(host)
        name = (found["v6"] or found["name"] or "") if found else ""
        return name in self._hosts or is_loopback(name)

    def _has_key(self, header: bytes) -> bool:
        """Compare all keys, which takes equal time for every header."""
        scheme, _, given = header.partition(b" ")
        given = given.strip()
        matches = [compare_digest(given, key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


def is_loopback(address: str) -> bool:
    """Say whether ``address`` leads only to this machine; False for a name."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
