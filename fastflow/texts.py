"""Reading texts from files: txt (one text a line), tsv, csv and jsonl, gzipped or not, or standard input."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fastflow.errors import FastflowError, UsageError

FORMATS = ("txt", "tsv", "csv", "jsonl")
PAIR = ("sentence1", "sentence2")
TEXT_FIELDS = ("text", "sentence")


class Record(NamedTuple):
    """One line's texts (two for a pairs file), its id if one was asked for, and the line number, from 1."""

    texts: tuple[str, ...]
    id: str | None
    line: int


def format_of(path: str, given: str | None = None) -> str:
    """The format of an input file by its suffix (.gz aside), unless ``given``; standard input is txt."""
    if given is not None:
        if given not in FORMATS:
            raise UsageError(f"unknown format {given!r}; known are {', '.join(FORMATS)}")
        return given
    suffix = Path(path.removesuffix(".gz")).suffix.lower().removeprefix(".")
    if path == "-" or not suffix:
        return "txt"
    if suffix not in FORMATS:
        raise UsageError(f"{path}: unknown suffix .{suffix}; name its format with --format {'|'.join(FORMATS)}")
    return suffix


def read_records(
    path: str, format: str | None = None, field: str | None = None, id_field: str | None = None, errors: str = "strict"
) -> Iterator[Record]:
    """Yield the records of ``path`` (``-`` is standard input) one by one.

    ``field`` names the column that holds the text; without it a column ``text`` or ``sentence`` is taken, or the only
    one, or both of a pairs file's ``sentence1`` and ``sentence2``. ``errors``: strict or replace, for bytes that are
    not UTF-8. Raises a FastflowError naming file and line.
    """
    kind = format_of(path, format)
    if kind == "txt" and (field or id_field):
        option = f"--text-field {field}" if field else f"--id-field {id_field}"
        raise UsageError(f"{path}: a txt file has no fields, so {option} cannot be read from it")
    with _open(path) as handle:
        lines = _decoded(handle, path, errors)
        if kind == "txt":
            yield from (Record((line,), None, number) for number, line in enumerate(lines, 1))
        elif kind == "jsonl":
            yield from _json_records(lines, path, field, id_field, errors)
        else:
            yield from _table_records(lines, path, kind, field, id_field)


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        if sys.stdin is None:
            raise FastflowError("standard input is closed; name a file instead of -")
        yield sys.stdin.buffer
        return
    try:
        handle = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise FastflowError(f"{path} cannot be opened: {error.strerror}") from error
    with handle:
        yield handle  # type: ignore[misc]


def _decoded(handle: BinaryIO, path: str, errors: str) -> Iterator[str]:
    """Lines without their ends; only \\n and \\r\\n end a line, and a byte-order mark is dropped."""
    number = 0
    try:
        for number, raw in enumerate(handle, 1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            yield raw.decode("utf-8", errors).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise FastflowError(
            f"{path}, line {number}: byte {error.start + 1} is not UTF-8; convert the file, or use --errors replace"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise FastflowError(f"{path}, line {number + 1}: cannot be read: {error}") from error


def _json_records(
    lines: Iterator[str], path: str, field: str | None, id_field: str | None, errors: str
) -> Iterator[Record]:
    for number, line in _without_blank_end(enumerate(lines, 1)):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FastflowError(f"{path}, line {number}: is not JSON: {error}") from error
        row = {"text": value} if isinstance(value, str) else value
        if not isinstance(row, dict):
            raise FastflowError(f"{path}, line {number}: must be a JSON object or string")
        fields = _text_fields(list(row), path, number, field)
        texts = tuple(_string(row, name, path, number, errors) for name in fields)
        identity = _id(row, id_field, path, number)
        if identity is not None:
            identity = _paired(identity, errors, str(id_field), path, number)
        yield Record(texts, identity, number)


def _without_blank_end(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """``lines`` without the blank ones at their end; one before a filled line is given, and so found at fault."""
    blank: tuple[int, str] | None = None
    for number, line in lines:
        if not line.strip():
            blank = blank or (number, line)
            continue
        if blank is not None:
            yield blank
        yield number, line


def _table_records(
    lines: Iterator[str], path: str, kind: str, field: str | None, id_field: str | None
) -> Iterator[Record]:
    # a tsv has no quoting: a stray quote in STS and GLUE files would swallow the rows after it
    csv.field_size_limit(1 << 30)
    ended = (line + "\n" for line in lines)
    if kind == "tsv":
        rows = csv.reader(ended, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
    else:
        rows = csv.reader(ended, strict=True)
    try:
        header = next(rows, None)
        if header is None:
            return
        fields = _text_fields(header, path, 1, field)
        blank = 0
        for values in rows:
            if not values and len(header) > 1:  # csv gives [] for an empty line: forgiven at the end of the file
                blank = blank or rows.line_num
                continue
            if blank:
                raise FastflowError(f"{path}, line {blank}: is empty, the header has {len(header)} fields")
            values = values or [""]
            if len(values) != len(header):
                raise FastflowError(f"{path}, line {rows.line_num}: has {len(values)} fields, the header {len(header)}")
            row = dict(zip(header, values, strict=True))
            yield Record(tuple(row[name] for name in fields), _id(row, id_field, path, rows.line_num), rows.line_num)
    except csv.Error as error:
        raise FastflowError(f"{path}, line {rows.line_num}: {error}") from error


def _text_fields(names: list[str], path: str, line: int, field: str | None) -> tuple[str, ...]:
    """Which columns hold the texts."""
    if field is not None:
        if field not in names:
            raise FastflowError(f"{path}, line {line}: no field {field!r}; the fields are {', '.join(names)}")
        return (field,)
    if all(name in names for name in PAIR):
        return PAIR
    for name in TEXT_FIELDS:
        if name in names:
            return (name,)
    if len(names) == 1:
        return (names[0],)
    raise FastflowError(
        f"{path}, line {line}: which field is the text? Use --text-field; the fields are {', '.join(names)}"
    )


def _string(row: dict[str, object], name: str, path: str, line: int, errors: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise FastflowError(f"{path}, line {line}: field {name!r} is not a string")
    return _paired(value, errors, name, path, line)


def _paired(text: str, errors: str, name: str, path: str, line: int) -> str:
    """``text``, or U+FFFD for what JSON can spell and UTF-8 cannot: half a surrogate pair such as \\ud800."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", errors)
    except UnicodeDecodeError as error:
        raise FastflowError(
            f"{path}, line {line}: field {name!r} holds half a surrogate pair; mend it, or use --errors replace"
        ) from error


def _id(row: dict[str, str] | dict[str, object], field: str | None, path: str, line: int) -> str | None:
    if field is None:
        return None
    if field not in row:
        raise FastflowError(f"{path}, line {line}: no field {field!r} to take the id from")
    return str(row[field])
