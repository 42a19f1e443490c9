"""Read texts from every format, packed or not, and from standard input."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import LONGEST, Identity, InputFormat, Record, RowFault, join_texts, list_names, text_fields
from fastflow.files.read.inputs import BadLine, Input, TooLong, without_packing

FORMATS = ("txt", "tsv", "csv", "jsonl", "json", "parquet")
TABLES = ("tsv", "csv")
# other formats that users try, with the remedy
OTHERS = {
    "npy": "holds vectors, not texts; fastflow transform calibrates vectors",
    "npz": "holds vectors, not texts; save them as .npy for fastflow transform",
    "safetensors": "holds vectors, not texts; save them as .npy for fastflow transform",
}


def format_of(path: str, given: str | None = None) -> str:
    """Return the format of an input by its suffix, unless ``given``."""
    if given is not None:
        if given not in FORMATS:
            raise UsageError(f"unknown format {given!r}; known are {', '.join(FORMATS)}")
        return given
    suffix = Path(without_packing(path)).suffix.lower().removeprefix(".")
    if path == "-" or not suffix:
        return "txt"
    if suffix in OTHERS:
        raise UsageError(f"{path} {OTHERS[suffix]}")
    if suffix not in FORMATS:
        raise UsageError(
            f"{path}: unknown suffix .{suffix}; texts are read from {', '.join(FORMATS)}: if it is one of these, add "
            f"--format {'|'.join(FORMATS)}"
        )
    return suffix


def unit_of(path: str, layout: InputFormat) -> str:
    """Return the word before a record's number: line, row, record or text."""
    return "text" if layout.null else {"parquet": "row", "json": "record"}.get(format_of(path, layout.format), "line")


def read_records(path: str, layout: InputFormat = InputFormat()) -> Iterator[Record]:  # noqa: B008 (immutable)
    """Yield the records of ``path``, ``-`` for standard input; raises a FastflowError naming file and line."""
    with Input(path) as source:
        for record in records_of(source, layout):
            if isinstance(record, RowFault):
                raise record
            yield record


def records_of(source: Input, layout: InputFormat, skip: int = 0) -> Iterator[Record | RowFault]:
    """Yield the records after the first ``skip``, or their faults."""
    path, kind = source.path, format_of(source.path, layout.format)
    check_layout(path, kind, layout)
    if kind == "parquet":
        from fastflow.files.read.parquet import parquet_records

        return parquet_records(source, layout, skip)
    return islice(_line_records(source, kind, layout), skip, None)


def rows_so_far(source: Input, layout: InputFormat) -> Iterator[int]:
    """Yield the number of rows so far; for Parquet only the total.

    Lines are parsed only if texts may hold line ends.
    """
    kind = format_of(source.path, layout.format)
    if kind == "parquet":
        from fastflow.files.read.parquet import row_count

        yield row_count(source)
    elif kind in (*TABLES, "json"):
        yield from (number for number, _ in enumerate(records_of(source, layout), 1))
    else:
        lines: Iterator[str | BadLine] = source.lines("replace", layout.null, layout.encoding)
        if kind == "jsonl":
            lines = (line for line in lines if isinstance(line, BadLine) or line.strip())
        yield from (number for number, _ in enumerate(lines, 1))


def _line_records(source: Input, kind: str, layout: InputFormat) -> Iterator[Record | RowFault]:
    if kind == "json":
        yield from list_records(source, layout)
        return
    errors = "replace" if layout.errors == "replace" else "strict"
    lines = source.lines(errors, layout.null, layout.encoding, whole=kind in TABLES)
    if kind in TABLES:
        from fastflow.files.read.tables import table_records

        yield from table_records(lines, source, kind, layout)
    elif kind == "jsonl":
        yield from json_records(lines, source, layout)
    else:
        yield from (
            line if isinstance(line, BadLine) else Record((line,), None, number) for number, line in enumerate(lines, 1)
        )


def check_layout(path: str, kind: str, layout: InputFormat) -> None:
    """Raise a UsageError for an option that the format ``kind`` lacks."""
    fields = {"--text-field": layout.field, "--id-field": layout.id_field, "--keep": ",".join(layout.keep)}
    if kind == "txt" and (asked := [f"{option} {name}" for option, name in fields.items() if name]):
        raise UsageError(f"{path}: a txt file has no fields, so {asked[0]} cannot be read from it")
    if kind not in TABLES and (layout.delimiter is not None or not layout.header or layout.quoting is not None):
        option = "--no-header" if not layout.header else "--quoting" if layout.delimiter is None else "--delimiter"
        raise UsageError(f"{path}: {option} is for csv and tsv, and this file is read as {kind}")
    if kind == "parquet" and path != without_packing(path):
        raise UsageError(f"{path}: Parquet packs its columns itself, and is not read out of another packing; unpack it")
    if kind == "parquet" and layout.encoding is not None:
        raise UsageError(f"{path}: --encoding is for lines of text, and this file is read as {kind}")
    if kind != "txt" and layout.null:
        raise UsageError(f"{path}: --null is for txt, and this file is read as {kind}")


MARK = re.compile(r"[ \t\r\n]*([^ \t\r\n])[ \t\r\n]*")


def json_records(lines: Iterable[str | BadLine], source: Input, layout: InputFormat) -> Iterator[Record | RowFault]:
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


def list_records(source: Input, layout: InputFormat) -> Iterator[Record | RowFault]:
    """Yield the records of a JSON list, or their faults; raises a FastflowError for broken JSON."""
    reader, number = Objects(source, layout), 0
    handler = "replace" if layout.errors == "replace" else "surrogateescape"
    decoder = codecs.getincrementaldecoder("utf-8-sig")(handler)
    source.waiting = 1  # makes waits() False
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

    def __init__(self, source: Input, layout: InputFormat) -> None:
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
