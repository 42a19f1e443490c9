"""The routes of a server, with a request that each answers, and what every refusal looks like on either interface."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from support.servers import Answer, Running

POSTS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "a"},
    "/embed": {"inputs": "a"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": "a"},
    "/search": {"query": "a"},
    "/embeddings": {"input": "a"},
    "/invocations": {"inputs": "a"},
}
NEEDED = {path: "inputs.sentences" if path == "/similarity" else next(iter(body)) for path, body in POSTS.items()}
ALIASES = {"/embeddings": "/v1/embeddings", "/invocations": "/embed", "/": "/embed"}
COMPUTED = [path for path in POSTS if path != "/tokenize"]
SHELL = {"/", "/page.css", "/page.js", "/docs", "/docs.js", "/favicon.ico"}  # the page, without data
HEALTH = {"/health", "/ping"}
PUBLIC = {*HEALTH, "/metrics", *SHELL}
GETS = ["/v1/models", "/info", "/openapi.json", "/api-doc/openapi.json", *sorted(PUBLIC)]
UNKNOWN = ["/v1/nothing", "/nothing", "/embed/", "//embed", "/v1/embeddings/", "/rerank"]

STATUS = {  # reason -> the status of OpenAI's routes, and status and type of the others
    "empty": (400, 400, "Empty"),
    "validation": (400, 422, "Validation"),
    "tokenizer": (400, 422, "Tokenizer"),
    "malformed": (400, 400, "Validation"),
    "media": (415, 415, "Validation"),
    "body": (413, 413, "Validation"),
    "host": (403, 403, "Validation"),
    "key": (401, 401, "Validation"),
    "model": (404, 404, "Validation"),
    "path": (404, 404, "Validation"),
    "method": (405, 405, "Validation"),
    "overloaded": (429, 429, "Overloaded"),
    "backend": (500, 424, "Backend"),
    "expired": (503, 503, "Overloaded"),
    "crowded": (503, 503, "Overloaded"),
    "unhealthy": (503, 503, "Unhealthy"),
}
CODES = {
    "key": "invalid_api_key",
    "model": "model_not_found",
    "overloaded": "rate_limit_exceeded",
    "expired": "timeout",
    "crowded": "rate_limit_exceeded",
}
OUTSIDE = ("path", "method")  # answers that no route's description can hold


def with_field(path: str, field: str, value: Any) -> dict[str, Any]:
    """The request of a route with a field set; a dot in its name leads into an object."""
    body = deepcopy(POSTS[path])
    inner, names = body, field.split(".")
    for name in names[:-1]:
        inner = inner.setdefault(name, {})
    inner[names[-1]] = value
    return body


def check_refusal(server: Running, path: str, answer: Answer, kind: str, says: str = "", param: Any = ...) -> None:
    """Check that an answer refuses for the reason ``kind``, in the words of its interface and as it is described."""
    if path.startswith("/v1/") or path == "/embeddings":
        error = answer.json["error"]
        server_error = answer.status >= 500
        kinds = {"overloaded": "rate_limit_error"}
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == kinds.get(kind, "server_error" if server_error else "invalid_request_error")
        assert error["code"] == CODES.get(kind)
        assert param is ... or error["param"] == param
        status, message = STATUS[kind][0], error["message"]
    else:
        assert set(answer.json) == {"error", "error_type"}
        assert answer.json["error_type"] == STATUS[kind][2]
        status, message = STATUS[kind][1], answer.json["error"]
    assert answer.status == status
    if "try again in " in message:
        assert int(answer.headers["retry-after"]) >= 1
    assert all(part in message for part in says.split("…")), message
    assert len(message) < 400
    operations = server.app.state.description["paths"].get(path)
    if operations and kind not in OUTSIDE:
        assert str(status) in (operations.get("post") or operations["get"])["responses"]
