"""Status and message of each refusal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from starlette.responses import JSONResponse, Response

from fastflow.serve.queue import Busy


class Kind(NamedTuple):
    """HTTP status, type and code on OpenAI's routes; then TEI's."""

    status: int
    type: str
    code: str | None
    tei_status: int
    tei_type: str


INVALID = "invalid_request_error"
KINDS = {
    "empty": Kind(400, INVALID, None, 400, "Empty"),
    "validation": Kind(400, INVALID, None, 422, "Validation"),
    "tokenizer": Kind(400, INVALID, None, 422, "Tokenizer"),
    "malformed": Kind(400, INVALID, None, 400, "Validation"),
    "media": Kind(415, INVALID, None, 415, "Validation"),
    "body": Kind(413, INVALID, None, 413, "Validation"),
    "host": Kind(403, INVALID, None, 403, "Validation"),
    "key": Kind(401, INVALID, "invalid_api_key", 401, "Validation"),
    "model": Kind(404, INVALID, "model_not_found", 404, "Validation"),
    "path": Kind(404, INVALID, None, 404, "Validation"),
    "method": Kind(405, INVALID, None, 405, "Validation"),
    "overloaded": Kind(429, "rate_limit_error", "rate_limit_exceeded", 429, "Overloaded"),
    "backend": Kind(500, "server_error", None, 424, "Backend"),
    "expired": Kind(503, "server_error", "timeout", 503, "Overloaded"),
    "crowded": Kind(503, "server_error", "rate_limit_exceeded", 503, "Overloaded"),
    "unhealthy": Kind(503, "server_error", None, 503, "Unhealthy"),
}
OPENAI = "/v1/"  # begins the routes of OpenAI, but /embeddings


class Refused(Exception):
    """Error for a refused request: ``kind`` of KINDS, message, wrong field, headers."""

    def __init__(
        self, kind: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.param, self.headers = kind, message, param, headers

    def make_response(self, path: str) -> Response:
        kind = KINDS[self.kind]
        if path.startswith(OPENAI) or path == "/embeddings":
            error = {"message": self.message, "type": kind.type, "param": self.param, "code": kind.code}
            return JSONResponse({"error": error}, kind.status, self.headers)
        return JSONResponse({"error": self.message, "error_type": kind.tei_type}, kind.tei_status, self.headers)


def refuse_overload(busy: Busy) -> Refused:
    """Make the refusal of a request that would wait too long."""
    message = f"the server is busy: try again in {busy.seconds} s, or start it with a larger {busy.option}"
    return Refused("overloaded", message, headers={"retry-after": str(busy.seconds)})


def refuse_connection(most: int, wait: float) -> Refused:
    """Refuse a connection beyond ``most``; ``wait``: seconds until waiting requests are answered."""
    seconds = max(1, math.ceil(wait))
    message = f"the server has {most} connections: try again in {seconds} s, or start it with more --max-connections"
    return Refused("crowded", message, headers={"retry-after": str(seconds)})


def refuse_expired() -> Refused:
    """Refuse a request past its deadline."""
    return Refused("expired", "the texts were not computed before the deadline: try again, or send fewer at once")
