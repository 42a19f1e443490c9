"""Read texts from the values of JSON Lines, and of a list in .json."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from fastflow.errors import FastflowError
from fastflow.files.read import LONGEST, Identity, Layout, Record, RowFault, join_texts, list_names, text_fields
from fastflow.files.read.inputs import BadLine, Input, TooLong

MARK = re.compile(r"[ \t\r\n]*([^ \t\r\n])[ \t\r\n]*")


def json_records(lines: Iterable[str | BadLine], source: Input, layout: Layout) -> Iterator[Record | RowFault]:
    """Yield the records of JSON Lines, or their faults."""
    reader = Objects(source, layout)
    for number, line in enumerate(lines, 1):
        if isinstance(line, RowFault):
            yield line
        elif line.strip():
            place = f"{source.path}, line {number}"
            try:
                yield reader.read(_parse(line, place), place, number)
            except RowFault as fault:
                yield fault


def list_records(source: Input, layout: Layout) -> Iterator[Record | RowFault]:
    """Yield the records of a JSON list, or their faults; raises a FastflowError for broken JSON."""
    reader, number = Objects(source, layout), 0
    handler = "replace" if layout.errors == "replace" else "surrogateescape"
    decoder = codecs.getincrementaldecoder("utf-8-sig")(handler)
    source.waiting = 1  # a window does not wait
    try:
        for value, text in _values(map(decoder.decode, source.chunks(layout.encoding)), source.path):
            number += 1
            place = f"{source.path}, record {number}"
            try:
                if len(text.encode()) > LONGEST:
                    raise RowFault(place, TooLong.FAULT, "cut it")
                yield reader.read(value, place, number)
            except UnicodeEncodeError:
                yield RowFault(place, "holds bytes that cannot be read", "name its --encoding, or use --errors replace")
            except RowFault as fault:
                yield fault
    except OSError as error:
        source.check_unchanged()
        raise FastflowError(f"{source.path}, record {number + 1}: cannot be read: {error}") from error
    source.check_unchanged()


def _values(pieces: Iterator[str], path: str) -> Iterator[tuple[Any, str]]:
    parser = json.JSONDecoder(object_pairs_hook=_object)
    text, at, enough, signs, number = "", 0, 0, "[", 1  # enough: to try again
    for piece in chain(pieces, [""]):
        text, at = text[at:] + piece, 0
        while (mark := MARK.match(text, at)) and (len(text) - at >= enough or not piece):
            sign, start = mark[1], mark.end()
            if sign not in signs:
                wanted = " or ".join(signs) or "its end"
                raise FastflowError(f"{path}, record {number}: is no JSON list: {wanted} should come before {sign!r}")
            if sign == "]" or (sign == "[" and text.startswith("]", start)):
                at, signs = start, "" if sign == "]" else "]"
                continue
            fault = None
            try:
                value, end = parser.raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                fault, end = error, len(text)
            if end == len(text) and piece and len(text) - at < 2 * LONGEST:
                enough = 2 * (len(text) - at)
                break
            if fault is not None:
                said = f"does not end within {2 * LONGEST >> 20} MB" if piece else getattr(fault, "msg", fault)
                raise FastflowError(f"{path}, record {number}: is not JSON: {said}") from fault
            yield value, text[start:end]
            at, enough, signs, number = end, 0, ",]", number + 1
    if signs:
        raise FastflowError(f"{path}, record {number}: the list is not closed; is the file whole?")


class Objects:
    """Finds text, id and kept fields in JSON values; the first object must have all."""

    def __init__(self, source: Input, layout: Layout) -> None:
        self._source, self._layout, self._first = source, layout, True

    def read(self, value: Any, place: str, number: int) -> Record:
        source, layout = self._source, self._layout
        row = {"text": value} if isinstance(value, str) else value
        if not isinstance(row, dict):
            raise RowFault(place, "must be a JSON object or string")
        names, key = list(row), layout.id_field
        if self._first:
            source.fields = text_fields(names, source.path, number, layout.field, source.fields)
            wanted = dict.fromkeys(layout.keep, "to keep") | ({} if key is None else {key: "to take the id from"})
            for name, purpose in wanted.items():
                if name not in row:
                    raise FastflowError(f"{place}: no field {name!r} {purpose}; the fields are {list_names(names)}")
            self._first = False
        if absent := [name for name in source.fields if name not in row]:
            fields = list_names(names)
            raise RowFault(place, f"no field {absent[0]!r}, the text of earlier rows; the fields are {fields}")
        texts = join_texts((self._text(row, name, place) for name in source.fields), layout)
        kept = tuple(self._check_kept(row, name, place) for name in layout.keep)
        return Record(texts, self._id(row, place), number, kept)

    def _text(self, row: dict[str, Any], name: str, place: str) -> str:
        value = row[name]
        if value is None:
            raise RowFault(place, f"field {name!r} is null, not a text", "fill it or remove the row")
        if not isinstance(value, str):
            raise RowFault(place, f"field {name!r} is not a string")
        return self._pair(value, name, place)

    def _pair(self, text: str, name: str, place: str) -> str:
        handler = "replace" if self._layout.errors == "replace" else "strict"
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16", handler)
        except UnicodeDecodeError:
            fault, remedy = f"field {name!r} holds half a surrogate pair", "mend it, or use --errors replace"
            raise RowFault(place, fault, remedy, "--errors replace") from None

    def _id(self, row: dict[str, Any], place: str) -> Identity:
        name = self._layout.id_field
        if name is None:
            return None
        if name not in row:
            raise RowFault(place, f"no field {name!r} to take the id from")
        value = row[name]
        if isinstance(value, (list, dict)) or (isinstance(value, float) and not math.isfinite(value)):
            raise RowFault(place, f"field {name!r} must be a string, number, true, false or null")
        return self._pair(value, name, place) if isinstance(value, str) else value

    def _check_kept(self, row: dict[str, Any], name: str, place: str) -> Any:
        value = row.get(name)
        if isinstance(value, str):
            return self._pair(value, name, place)
        if isinstance(value, (list, dict, float)):
            try:
                json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
            except ValueError as error:
                raise RowFault(place, f"field {name!r} is no JSON value: {error}") from error
        return value


def _parse(line: str, place: str) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise RowFault(place, f"is not JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} comes twice in one object")
    return made
