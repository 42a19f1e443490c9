"""Fields and refusals of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from starlette.responses import JSONResponse, Response

from fastflow.serve.queue import Busy, round_wait
from fastflow.values import short

Schema = dict[str, Any]
Values = dict[str, Any]  # of the fields of an object, by their names


class ErrorKind(NamedTuple):
    """HTTP status, type and code on OpenAI's routes; then TEI's."""

    status: int
    type: str
    code: str | None
    tei_status: int
    tei_type: str


INVALID = "invalid_request_error"
KINDS = {
    "empty": ErrorKind(400, INVALID, None, 400, "Empty"),
    "validation": ErrorKind(400, INVALID, None, 422, "Validation"),
    "tokenizer": ErrorKind(400, INVALID, None, 422, "Tokenizer"),
    "malformed": ErrorKind(400, INVALID, None, 400, "Validation"),
    "media": ErrorKind(415, INVALID, None, 415, "Validation"),
    "body": ErrorKind(413, INVALID, None, 413, "Validation"),
    "host": ErrorKind(403, INVALID, None, 403, "Validation"),
    "key": ErrorKind(401, INVALID, "invalid_api_key", 401, "Validation"),
    "model": ErrorKind(404, INVALID, "model_not_found", 404, "Validation"),
    "path": ErrorKind(404, INVALID, None, 404, "Validation"),
    "method": ErrorKind(405, INVALID, None, 405, "Validation"),
    "overloaded": ErrorKind(429, "rate_limit_error", "rate_limit_exceeded", 429, "Overloaded"),
    "backend": ErrorKind(500, "server_error", None, 424, "Backend"),
    "expired": ErrorKind(503, "server_error", "timeout", 503, "Overloaded"),
    "crowded": ErrorKind(503, "server_error", "rate_limit_exceeded", 503, "Overloaded"),
    "unhealthy": ErrorKind(503, "server_error", None, 503, "Unhealthy"),
}


def is_openai(path: str) -> bool:
    """Say whether errors at ``path`` have OpenAI's form."""
    return path.startswith("/v1/") or path == "/embeddings"


class Refused(Exception):
    """Error for a refused request: ``kind`` of KINDS, message, wrong field, headers."""

    def __init__(
        self, kind: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.param, self.headers = kind, _escape(message), param and _escape(param), headers

    def make_response(self, path: str) -> Response:
        kind = KINDS[self.kind]
        if is_openai(path):
            error = {"message": self.message, "type": kind.type, "param": self.param, "code": kind.code}
            return JSONResponse({"error": error}, kind.status, self.headers)
        return JSONResponse({"error": self.message, "error_type": kind.tei_type}, kind.tei_status, self.headers)


def _escape(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()  # a name may have half of a surrogate pair


def refuse_for_now(kind: str, fault: str, seconds: float, way_out: str = "", **headers: str) -> Refused:
    """Refuse a request that may return after ``seconds``, at least 1."""
    wait = round_wait(seconds)
    return Refused(kind, f"{fault}: try again in {wait} s{way_out}", headers={"retry-after": str(wait)} | headers)


def refuse_busy(busy: Busy) -> Refused:
    """Refuse a request that would wait."""
    way_out = f", or start it with a larger {busy.option}"
    return refuse_for_now("overloaded", "the server is busy", busy.seconds, way_out)


def refuse_expired() -> Refused:
    """Refuse a request past its deadline."""
    return Refused("expired", "the texts were not computed before the deadline: try again, or send fewer at once")


def parse_json(body: bytes | bytearray) -> Any:
    """Parse a body; raises Refused for other content than JSON, such as NaN."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise Refused("malformed", "the body is JSON that is nested too deep") from None
    except ValueError as error:
        raise Refused("malformed", f"the body is not JSON: {short(str(error))}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


# ---- fields

IDS = (
    "{} holds token ids, and this server takes texts, for ids of another tokenizer would be silently wrong: send "
    "strings (in LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))"
)
STRING: Schema = {"type": "string"}


def allow_null(schema: Schema) -> Schema:
    """Describe a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


class Field(NamedTuple):
    """A field of a JSON object; null counts as absent, and then ``default`` is its value.

    ``read(name, value)`` returns the checked value or raises Refused.
    """

    schema: Schema
    read: Callable[[str, Any], Any]
    default: Any = None
    required: bool = False
    meaning: str = ""
    fields: Mapping[str, Field] = MappingProxyType({})


def _refuse_value(name: str, must: str, value: Any, why: str = "") -> Refused:
    return Refused("validation", f"{name or 'the body'} must be {must}, not {short(value)}{why}", name or None)


def take_string(meaning: str, schema: Schema = STRING) -> Field:
    """Declare a string."""

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _refuse_value(name, "a string", value)
        return value

    return Field(schema, read, meaning=meaning)


def take_choice(meaning: str, names: Sequence[str], default: str | None = None, why: str = "") -> Field:
    """Declare one of ``names``."""

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise _refuse_value(name, f"one of {', '.join(names)}", value, why)
        return value

    return Field({"enum": [*names]} | ({"default": default} if default else {}), read, default, meaning=meaning)


def take_flag(meaning: str, default: bool, words: Mapping[str, bool] = MappingProxyType({})) -> Field:
    """Declare a flag, or one of ``words``."""

    def read(name: str, value: Any) -> bool:
        if isinstance(value, str) and value in words:
            return words[value]
        if not isinstance(value, bool):
            raise _refuse_value(name, " or ".join(["true or false", *words]), value)
        return value

    more = {"type": ["boolean", "string"], "enum": [True, False, *words]} if words else {}
    return Field({"type": "boolean", "default": default} | more, read, default, meaning=meaning)


def take_count(meaning: str, most: int, bound: str = "", default: int | None = None) -> Field:
    """Declare a whole number from 1 to ``most``."""

    def read(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():  # JSON Schema counts 80.0 as whole
            value = int(value)
        if type(value) is not int or not 1 <= value <= most:
            raise _refuse_value(name, f"a whole number from 1 to {most}{bound}", value)
        return value

    schema: Schema = {"type": "integer", "minimum": 1, "maximum": most}
    return Field(schema | ({"default": default} if default else {}), read, default, meaning=meaning)


def take_number(meaning: str) -> Field:
    """Declare a number."""

    def read(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refuse_value(name, "a number", value)
        return float(value)

    return Field({"type": "number"}, read, meaning=meaning)


def take_map(meaning: str) -> Field:
    """Declare an object of any names."""

    def read(name: str, value: Any) -> Values:
        if not isinstance(value, dict):
            raise _refuse_value(name, "an object", value)
        return value

    return Field({"type": "object"}, read, meaning=meaning)


def take_texts(meaning: str, most: int, listed: bool = False) -> Field:
    """Declare 1 to ``most`` texts, or one string unless ``listed``; read as (texts, is a list)."""

    def read(name: str, value: Any) -> tuple[list[str], bool]:
        if isinstance(value, str) and not listed:
            return [value], False
        if not isinstance(value, list):
            raise _refuse_value(name, "a list of strings" if listed else "a string or a list of strings", value)
        if not value:
            raise Refused("empty", f"{name} holds no text", name)
        if len(value) > most:
            message = f"{name} holds {len(value)} texts, and a request may hold {most}: send them in parts"
            raise Refused("validation", message, name)
        for i, each in enumerate(value):
            if not isinstance(each, str):
                raise (
                    Refused("validation", IDS.format(name), name)
                    if _is_ids(each)
                    else _refuse_value(f"{name}[{i}]", "a string", each)
                )
        return value, True

    texts: Schema = {"type": "array", "items": STRING, "minItems": 1, "maxItems": most}
    return Field(texts if listed else {"anyOf": [STRING, texts]}, read, required=True, meaning=meaning)


def _is_ids(value: Any) -> bool:
    return type(value) is int or (isinstance(value, list) and all(type(each) is int for each in value))


def take_object(meaning: str = "", /, **fields: Field) -> Field:
    """Declare an object."""
    required = [name for name, field in fields.items() if field.required]
    must = "a JSON object" + f" with {' and '.join(required)}" * bool(required)

    def read(where: str, value: Any) -> Values:
        if not isinstance(value, dict):
            raise _refuse_value(where, must, value)
        path = where + "." * bool(where)
        for name in value:
            if name not in fields:
                message = f"{path}{name:.80} is no field of this request; known are {', '.join(fields)}"
                raise Refused("validation", message, f"{path}{name:.80}")
        found = {}
        for name, field in fields.items():
            given = value.get(name)
            if given is None and field.required:
                raise Refused("validation", f"{path}{name} is missing", path + name)
            found[name] = field.default if given is None else field.read(path + name, given)
        return found

    properties = {it: each.schema if each.required else allow_null(each.schema) for it, each in fields.items()}
    schema: Schema = {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
    return Field(schema, read, None if required else read("", {}), bool(required), meaning, fields)
