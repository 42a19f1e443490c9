"""Read texts from every format, packed or not, and from standard input."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import Identity, Layout, Record, RowFault, list_names, text_fields
from fastflow.files.read.inputs import Input, without_packing

FORMATS = ("txt", "tsv", "csv", "jsonl", "parquet")
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


def unit_of(path: str, layout: Layout) -> str:
    """Return the word before a record's number in messages: line, row or text."""
    return "text" if layout.null else "row" if format_of(path, layout.format) == "parquet" else "line"


def read_records(path: str, layout: Layout = Layout()) -> Iterator[Record]:  # noqa: B008 (immutable)
    """Yield the records of ``path``, ``-`` for standard input; raises a FastflowError naming file and line."""
    with Input(path) as source:
        yield from records_of(source, layout)


def records_of(source: Input, layout: Layout, skip: int = 0) -> Iterator[Record]:
    """Yield the records of an open input after the first ``skip``."""
    path, kind = source.path, format_of(source.path, layout.format)
    check_layout(path, kind, layout)
    if kind == "parquet":
        from fastflow.files.read.parquet import parquet_records

        return parquet_records(source, layout, skip)
    return islice(_line_records(source, kind, layout), skip, None)


def rows_so_far(source: Input, layout: Layout) -> Iterator[int]:
    """Yield the number of rows so far, after each row; for Parquet only the total.

    Lines are parsed only if texts may hold line ends or rows are skipped.
    """
    kind = format_of(source.path, layout.format)
    if kind == "parquet":
        from fastflow.files.read.parquet import row_count

        yield row_count(source)
    elif kind in TABLES or layout.errors == "skip":
        yield from (number for number, _ in enumerate(records_of(source, layout), 1))
    else:
        lines = enumerate(source.lines(layout.errors, layout.null, layout.encoding), 1)
        yield from (number for number, line in lines if kind == "txt" or line.strip())  # JSON: blank lines are not rows


def _line_records(source: Input, kind: str, layout: Layout) -> Iterator[Record]:
    skips = layout.errors == "skip"
    errors = "surrogateescape" if skips else layout.errors
    lines = source.lines(errors, layout.null, layout.encoding, whole=kind in TABLES)
    if kind in TABLES:
        from fastflow.files.read.tables import table_records

        yield from table_records(lines, source, kind, layout)
        return
    numbered: Iterator[tuple[int, str]] = enumerate(lines, 1)
    if skips:
        numbered = _without_unreadable(numbered, source, unit_of(source.path, layout))
    if kind == "jsonl":
        yield from _json_records(numbered, source, layout)
    else:
        yield from (Record((line,), None, number) for number, line in numbered)


def _without_unreadable(lines: Iterator[tuple[int, str]], source: Input, unit: str) -> Iterator[tuple[int, str]]:
    from fastflow.files.read.encodings import is_unreadable

    for number, line in lines:
        if is_unreadable(line):
            source.skipped.add(source.path, unit, number)
        else:
            yield number, line


def check_layout(path: str, kind: str, layout: Layout) -> None:
    """Raise a UsageError for an option that the format ``kind`` lacks."""
    fields = {"--text-field": layout.field, "--id-field": layout.id_field, "--keep": ",".join(layout.keep)}
    if kind == "txt" and (asked := [f"{option} {name}" for option, name in fields.items() if name]):
        raise UsageError(f"{path}: a txt file has no fields, so {asked[0]} cannot be read from it")
    if kind not in TABLES and (layout.delimiter is not None or not layout.header):
        option = "--no-header" if layout.delimiter is None else "--delimiter"
        raise UsageError(f"{path}: {option} is for csv and tsv, and this file is read as {kind}")
    if kind == "parquet" and path != without_packing(path):
        raise UsageError(f"{path}: Parquet packs its columns itself, and is not read out of another packing; unpack it")
    if kind == "parquet" and (layout.encoding is not None or layout.errors == "skip"):
        option = "--encoding" if layout.encoding is not None else "--errors skip"
        raise UsageError(f"{path}: {option} is for lines of text, and this file is read as {kind}")
    if kind != "txt" and layout.null:
        raise UsageError(f"{path}: --null is for txt, and this file is read as {kind}")


def _json_records(lines: Iterator[tuple[int, str]], source: Input, layout: Layout) -> Iterator[Record]:
    first = True
    for number, line in _without_blank_end(lines):
        try:
            yield _json_record(line, source, number, layout, first)
            first = False
        except RowFault:
            if layout.errors != "skip":
                raise
            source.skipped.add(source.path, "line", number)


def _json_record(line: str, source: Input, number: int, layout: Layout, first: bool) -> Record:
    path = source.path
    try:
        value = json.loads(line, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise FastflowError(f"{path}, line {number}: is not JSON: {error}") from error
    row = {"text": value} if isinstance(value, str) else value
    if not isinstance(row, dict):
        raise FastflowError(f"{path}, line {number}: must be a JSON object or string")
    source.fields = text_fields(list(row), path, number, layout.field, source.fields)
    if first and (absent := [name for name in layout.keep if name not in row]):
        raise FastflowError(
            f"{path}, line {number}: no field {absent[0]!r} to keep; the fields are {list_names(list(row))}"
        )
    texts = tuple(_string(row, name, path, number, layout.errors) for name in source.fields)
    kept = tuple(_json_kept(row, name, path, number, layout) for name in layout.keep)
    return Record(texts, _json_id(row, path, number, layout), number, kept)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} comes twice in one object")
    return made


def _without_blank_end(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    blank: tuple[int, str] | None = None
    for number, line in lines:
        if not line.strip():
            blank = blank or (number, line)
            continue
        if blank is not None:
            yield blank
        yield number, line


def _string(row: dict[str, Any], name: str, path: str, line: int, errors: str) -> str:
    value = row[name]
    if value is None:
        raise FastflowError(f"{path}, line {line}: field {name!r} is null, not a text; fill it or remove the line")
    if not isinstance(value, str):
        raise FastflowError(f"{path}, line {line}: field {name!r} is not a string")
    return _pair(value, errors, name, path, line)


def _pair(text: str, errors: str, name: str, path: str, line: int) -> str:
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace" if errors == "replace" else "strict")
    except UnicodeDecodeError as error:
        raise RowFault(
            f"{path}, line {line}: field {name!r} holds half a surrogate pair; mend it, or use --errors replace",
            "--errors replace",
        ) from error


def _json_id(row: dict[str, Any], path: str, line: int, layout: Layout) -> Identity:
    name = layout.id_field
    if name is None:
        return None
    if name not in row:
        raise FastflowError(f"{path}, line {line}: no field {name!r} to take the id from")
    value = row[name]
    if isinstance(value, (list, dict)) or (isinstance(value, float) and not math.isfinite(value)):
        raise FastflowError(f"{path}, line {line}: field {name!r} must be a string, number, true, false or null")
    identity: Identity = _pair(value, layout.errors, name, path, line) if isinstance(value, str) else value
    return identity


def _json_kept(row: dict[str, Any], name: str, path: str, line: int, layout: Layout) -> Any:
    value = row.get(name)
    if isinstance(value, str):
        return _pair(value, layout.errors, name, path, line)
    if isinstance(value, (list, dict, float)):
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")
        except ValueError as error:
            raise FastflowError(f"{path}, line {line}: field {name!r} is no JSON value: {error}") from error
    return value
