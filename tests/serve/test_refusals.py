"""Every refusal of a request by its own fault, as rows of a table: the request, and the reason and sentence it gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from fastflow.serve.app import LEFT_OUT, NO_FILE

from support.routes import GETS, NEEDED, POSTS, PUBLIC, UNKNOWN, check_refusal, with_field
from support.servers import until

OPENAI, EMBED, SIMILARITY, TOKENIZE, SEARCH, *_ = POSTS
EVERY = [*POSTS, *GETS, *UNKNOWN]
KEY = {"authorization": "Bearer first-key"}


class Row(NamedTuple):
    """A request; ``says``: parts of the sentence, with … between them; ``server``: a fixture."""

    path: str
    body: Any
    says: str
    kind: str = "validation"
    param: Any = ...
    raw: Any = None
    headers: Mapping[str, str] = MappingProxyType({})
    method: str = "POST"
    server: str = "librarian"


# the sentence of a field's wrong value, after the field's name
FLAG = [(value, " must be true or false, not") for value in (1, "true", "x" * 10_000)]
NIM = [(value, " must be true or false or NONE or END, not") for value in (1, "START")]
TEXT = [(value, " must be a string, not") for value in (3, ["a"])]
CHOICE = [(value, " must be one of") for value in ("hex", [])]
RIGHT = [
    (value, " must be one of right, Right, not …: texts are cut at their end only") for value in ("left", "hex", [])
]
PROMPT = [*TEXT, ("other", "…known are query, document")]
IDS = [(value, " holds token ids, and …check_embedding_ctx_length=False") for value in ([1, 2], [[1, 2], [3]])]
LIST = [*IDS, *((["a", value], "[1] must be a string") for value in (None, 1.5))]
ONE_OR_LIST = [*LIST, *((value, " must be a string or a list of strings") for value in ({"text": "a"}, 1))]


def count(most: int, bound: str = "") -> list[tuple[Any, str]]:
    wrong = (0, 0.0, True, 1.5, "8", -1.0, most + 1, most + 1.0)
    return [(value, f" must be a whole number from 1 to {most}{bound}, not ") for value in wrong]


def too_long(most: int) -> list[tuple[Any, str]]:
    return [(["a"] * (most + 1), f" holds {most + 1} texts, and a request may hold {most}")]


DIMENSIONS = count(256, ", the model's width")
CUT = {"truncate": FLAG, "truncation_direction": RIGHT, "prompt_name": PROMPT}
FIELDS: dict[str, dict[str, list[tuple[Any, str]]]] = {
    OPENAI: {
        "input": ONE_OR_LIST + too_long(2048), "encoding_format": CHOICE, "dimensions": DIMENSIONS, "user": TEXT,
        "model": TEXT, "input_type": CHOICE, "prompt_name": PROMPT, "truncate": NIM, "normalize": FLAG,
    },
    EMBED: {"inputs": ONE_OR_LIST + too_long(2048), "dimensions": DIMENSIONS, "normalize": FLAG, **CUT},
    SIMILARITY: {
        "inputs": [(value, " must be a JSON object with source_sentence and sentences, not") for value in ("a", [])],
        "inputs.source_sentence": [*TEXT, (None, " is missing")],
        "inputs.sentences": LIST + too_long(2047) + [("b", " must be a list of strings, not"), (None, " is missing")],
        "inputs.x": [(1, " is no field of this request; known are source_sentence, sentences")],
        "parameters": [([], " must be a JSON object, not"), ({"normalize": True}, ".normalize is no field")],
        **{f"parameters.{name}": rows for name, rows in CUT.items()},
    },
    TOKENIZE: {
        "inputs": [*ONE_OR_LIST, *too_long(2048), ("a" * 500_001, " hold more than 500000 characters")],
        "add_special_tokens": FLAG, "prompt_name": PROMPT,
    },
    SEARCH: {
        "query": ONE_OR_LIST + too_long(32), "k": count(100), "by": CHOICE, "distinct": FLAG,
        "min_score": [(value, " must be a number, not") for value in ("1", True, [])],
        "filter": [("a", " must be an object, not"), ({"colour": 1}, "no column is called 'colour'")],
    },
}  # fmt: skip
NO_JSON = (b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[Infinity]", b'{"a": 1e}', b"[" * 100_000, b"1" * 5000)
TYPES = ("text/plain", "text/plain; application/json", "text/plain, application/json", "",
         "application/x-www-form-urlencoded", "multipart/form-data; boundary=a")  # fmt: skip
KEYS = (None, "Bearer wrong", "Bearer", "Basic first-key", "first-key", "Bearer first-key2")
FOREIGN = ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
           "[::2]", "evil@localhost", "localhost:80:80", "", "[::1].evil.example")  # fmt: skip


def list_fields(path: str) -> Iterator[Row]:
    for field, rows in FIELDS[path].items():
        for value, says in rows:
            says = field + says if says[0] in " [." else says
            param = field + "[1]" * says.startswith(f"{field}[1]") if path == OPENAI else ...
            yield Row(path, with_field(path, field, value), says, param=param)


def list_bodies(path: str) -> Iterator[Row]:
    needed, texts = next(iter(POSTS[path])), NEEDED[path]
    yield Row(path, [], f"the body must be a JSON object with {needed}, not []", param=None)
    yield Row(path, {}, f"{needed} is missing", param=needed)
    for name, shown in (("colour", "colour"), ("\ud800", "\\ud800")):  # half of a surrogate pair
        says = f"{shown} is no field of this request; known are {needed}"
        yield Row(path, with_field(path, name, 1), says, param=shown)
    yield Row(path, with_field(path, texts, []), f"{texts} holds no text", "empty")
    yield Row(path, with_field(path, texts, ["a\ud800"]), "surrogate", "tokenizer")
    kind = {"content-type": "application/json; charset=utf-8"}
    for body in NO_JSON:
        yield Row(path, None, "the body is", "malformed", None, body, kind)
    for name in TYPES:  # browsers send these to any origin without asking it first
        headers = {"content-type": name, "origin": "http://evil.example"}
        says = "send the header Content-Type: application/json"
        yield Row(path, None, says, "media", None, b'{"query": "a"}', headers)
    large = "the body is larger than 2000 bytes", "body", None
    yield Row(path, None, *large, b"x", KEY | {"content-length": "2001"}, server="locked")
    yield Row(path, None, *large, [b" " * 500] * 5, KEY, server="locked")


def list_names() -> Iterator[Row]:
    says = "does not exist here; this server has default; --any-model takes every name"
    for name, shown in (("text-embedding-3-small",) * 2, ("\ud800", "\\ud800")):
        yield Row(OPENAI, {"input": "a", "model": name}, f"the model {shown} {says}", "model", "model")
    for path in UNKNOWN:
        yield Row(path, None, f"{path} is ", "path", method="GET")
    for path in ("/embed_all", "/embed_sparse", "/rerank", "/predict", "/decode", "/vertex"):  # TEI 1.8 has them
        yield Row(path, {}, f"{path} is a route of TEI that this server leaves out: …{LEFT_OUT[path]}", "path")
    yield Row("/search", {"query": "a"}, NO_FILE, "path", server="server")
    for path in (*POSTS, *GETS):
        for method in ("DELETE" if path == "/" else "GET" if path in POSTS else "POST", "PUT", "OPTIONS"):
            yield Row(path, None, f"{path} takes …, not {method}", "method", method=method)


def list_strangers() -> Iterator[Row]:
    for method in ("GET", "POST", "OPTIONS"):
        for path in EVERY:
            for host in FOREIGN if path in (EMBED, "/") else FOREIGN[::4]:
                says = "this server answers to localhost alone", "host", None, None
                yield Row(path, None, *says, {"host": host}, method, "local")
            for key in () if path in PUBLIC and (method, path) != ("POST", "/") else KEYS:
                says = "the API key is missing or wrong", "key", None, None
                yield Row(path, None, *says, {"authorization": key} if key else {}, method, "locked")


TABLE = {
    **{f"fields of {path}": list_fields(path) for path in FIELDS},
    **{f"body of {path}": list_bodies(path) for path in POSTS},
    "names": list_names(), "strangers": list_strangers(),
}  # fmt: skip
TABLE = {name: list(rows) for name, rows in TABLE.items()}


@pytest.mark.parametrize("group", TABLE)
def test_each_request_is_refused_for_its_reason(request, group):
    for row in TABLE[group]:
        server = request.getfixturevalue(row.server)
        metrics = server.service.metrics
        failed, seen = metrics.value("te_request_failure", err=row.kind), metrics.value("te_embed_count")
        answer = server.ask(row.method, row.path, row.body, row.headers, row.raw)
        check_refusal(server, row.path, answer, row.kind, row.says, row.param)
        assert metrics.value("te_request_failure", err=row.kind) == failed + 1
        assert metrics.value("te_embed_count") == seen or row.kind == "tokenizer"
        if row.kind == "method":
            methods = {"/": "GET, HEAD, POST"}.get(row.path, "POST" if row.path in POSTS else "GET, HEAD")
            assert sorted(answer.headers["allow"].split(", ")) == methods.split(", ")
        assert ("www-authenticate" in answer.headers) == (row.kind == "key")
        assert not [name for name in answer.headers if name.startswith("access-control")]
        until(lambda server=server: server.service.bodies == 0)


def test_the_table_has_every_field(librarian):
    for path, rows in FIELDS.items():
        body = librarian.app.state.description["paths"][path]["post"]["requestBody"]
        schema = body["content"]["application/json"]["schema"]
        found = set(schema["properties"])
        for name, each in schema["properties"].items():
            inner = each.get("properties") or each.get("anyOf", [{}])[0].get("properties", {})
            found |= {f"{name}.{field}" for field in inner}
        assert set(rows) - {"inputs.x"} == found
