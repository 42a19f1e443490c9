"""Read texts from every format, packed or not, and from standard input."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fastflow.errors import UsageError
from fastflow.files.read import Layout, Record, RowFault
from fastflow.files.read.inputs import BadLine, Input, without_packing

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


def unit_of(path: str, layout: Layout) -> str:
    """Return the word before a record's number: line, row, record or text."""
    return "text" if layout.null else {"parquet": "row", "json": "record"}.get(format_of(path, layout.format), "line")


def read_records(path: str, layout: Layout = Layout()) -> Iterator[Record]:  # noqa: B008 (immutable)
    """Yield the records of ``path``, ``-`` for standard input; raises a FastflowError naming file and line."""
    with Input(path) as source:
        for record in records_of(source, layout):
            if isinstance(record, RowFault):
                raise record
            yield record


def records_of(source: Input, layout: Layout, skip: int = 0) -> Iterator[Record | RowFault]:
    """Yield the records after the first ``skip``, or their faults."""
    path, kind = source.path, format_of(source.path, layout.format)
    check_layout(path, kind, layout)
    if kind == "parquet":
        from fastflow.files.read.parquet import parquet_records

        return parquet_records(source, layout, skip)
    return islice(_line_records(source, kind, layout), skip, None)


def rows_so_far(source: Input, layout: Layout) -> Iterator[int]:
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


def _line_records(source: Input, kind: str, layout: Layout) -> Iterator[Record | RowFault]:
    if kind == "json":
        from fastflow.files.read.objects import list_records

        yield from list_records(source, layout)
        return
    errors = "replace" if layout.errors == "replace" else "strict"
    lines = source.lines(errors, layout.null, layout.encoding, whole=kind in TABLES)
    if kind in TABLES:
        from fastflow.files.read.tables import table_records

        yield from table_records(lines, source, kind, layout)
    elif kind == "jsonl":
        from fastflow.files.read.objects import json_records

        yield from json_records(lines, source, layout)
    else:
        yield from (
            line if isinstance(line, BadLine) else Record((line,), None, number) for number, line in enumerate(lines, 1)
        )


def check_layout(path: str, kind: str, layout: Layout) -> None:
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
