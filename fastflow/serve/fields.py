"""The fields of a JSON request."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from fastflow.serve.refusals import Refused
from fastflow.values import short

IDS = (
    "{name} holds token ids, and this server takes texts, for ids of another tokenizer would be silently wrong: send "
    "strings (in LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))"
)


def parse(body: bytes | bytearray) -> Any:
    """Parse the JSON of a body; raises Refused for other content, such as NaN."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise Refused("malformed", "the body is JSON that is nested too deep") from None
    except ValueError as error:
        raise Refused("malformed", f"the body is not JSON: {short(str(error))}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


class Fields:
    """Reads the fields of a JSON object, of ``known`` names; null is absent. Methods raise Refused."""

    def __init__(self, value: Any, known: Collection[str], where: str = "") -> None:
        """``where``: path of the object, such as ``inputs.``; empty for the body."""
        self._where = where
        if not isinstance(value, dict):
            raise self._refuse(where.rstrip(".") or "the body", "must be a JSON object", value)
        for name in value:
            if name not in known:
                message = f"{where}{name:.80} is no field of this request; known are {', '.join(known)}"
                raise Refused("validation", message, f"{where}{name:.80}")
        self._fields = {name: each for name, each in value.items() if each is not None}

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def require(self, name: str) -> Any:
        if name not in self._fields:
            raise Refused("validation", f"{self._where}{name} is missing", self._where + name)
        return self._fields[name]

    def flag(self, name: str, default: bool, words: Mapping[str, bool] = MappingProxyType({})) -> bool:
        value = self._fields.get(name, default)
        if isinstance(value, str) and value in words:
            return words[value]
        if not isinstance(value, bool):
            raise self._refuse(name, " or ".join(["must be true or false", *words]), value)
        return value

    def text(self, name: str) -> str | None:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise self._refuse(name, "must be a string", value)
        return value

    def choice(self, name: str, choices: Collection[str], default: str | None = None) -> str | None:
        value = self._fields.get(name, default)
        if value is not None and (not isinstance(value, str) or value not in choices):
            raise self._refuse(name, f"must be one of {', '.join(choices)}", value)
        return value

    def count(self, name: str) -> int | None:
        value = self._fields.get(name)
        if isinstance(value, float) and value.is_integer():  # JSON Schema counts 80.0 as whole
            value = int(value)
        if value is not None and (type(value) is not int or value < 1):
            raise self._refuse(name, "must be a whole number of at least 1", value)
        return value

    def texts(self, name: str, most: int) -> tuple[list[str], bool]:
        """Return 1 to ``most`` texts, and whether they are a list."""
        value = self.require(name)
        if isinstance(value, str):
            return [value], False
        if not isinstance(value, list):
            raise self._refuse(name, "must be a string or a list of strings", value)
        if not value:
            raise Refused("empty", f"{self._where}{name} holds no text", self._where + name)
        if len(value) > most:
            message = f"{self._where}{name} holds {len(value)} texts, and a request may hold {most}: send them in parts"
            raise Refused("validation", message, self._where + name)
        for i, each in enumerate(value):
            if not isinstance(each, str):
                if _is_ids(each):
                    raise Refused("validation", IDS.format(name=self._where + name), self._where + name)
                raise self._refuse(f"{name}[{i}]", "must be a string", each)
        return value, True

    def _refuse(self, name: str, must: str, value: Any) -> Refused:
        where = name if name == "the body" else self._where + name
        return Refused("validation", f"{where} {must}, not {short(value)}", None if name == "the body" else where)


def _is_ids(value: Any) -> bool:
    return type(value) is int or (isinstance(value, list) and all(type(each) is int for each in value))
