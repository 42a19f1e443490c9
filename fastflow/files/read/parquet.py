"""Read texts from Parquet by row groups, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.files.read import LONGEST, InputFormat, Record, RowFault, join_texts, list_names, text_fields
from fastflow.files.read.inputs import Input, TooLong
from fastflow.values import reason, system_failed

BATCH = 4096  # the most rows read at a time
BYTES = 1 << 24  # unpacked size of a batch, about


def arrow(purpose: str) -> Any:
    """Return (pyarrow, pyarrow.parquet); raises a FastflowError if they are not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("parquet", "pyarrow", purpose) from None
    return pyarrow, pyarrow.parquet


def parquet_records(source: Input, layout: InputFormat, skip: int = 0) -> Iterator[Record | RowFault]:
    """Yield the records after the first ``skip``, or their faults.

    Kept fields are Arrow scalars, ``line`` is the row from 0.
    """
    file = _open_file(source)
    with _readable(source.path):
        fields, columns = columns_of(source, file.schema_arrow, layout)
    file = _open_file(source, fields)  # else a short repeated value could become gigabytes
    counts, row = counts_of(file, source.path), 0
    try:
        for group, count in enumerate(counts):
            end = row + count
            if end <= skip:
                row = end
                continue
            size = _rows_at_once(file.metadata.row_group(group))
            for batch in file.iter_batches(size, row_groups=[group], columns=columns):
                first = max(0, skip - row)
                yield from _records(batch.slice(first), fields, source.path, row + first, layout)
                row += batch.num_rows
            if row != end:
                raise FastflowError(f"{source.path} is damaged: a row group should end at row {end}, and ends at {row}")
    except (OSError, ValueError) as error:
        source.check_unchanged()
        raise FastflowError(f"{source.path}, row {row}: cannot be read: {reason(error)}") from error
    source.check_unchanged()


def _rows_at_once(group: Any) -> int:
    """Return the number of rows of about BYTES, at most BATCH, by the sizes of all columns.

    Asking for a damaged column ends the process (pyarrow 26).
    """
    return max(1, min(BATCH, BYTES * group.num_rows // max(1, group.total_byte_size)))


def row_count(source: Input) -> int:
    """Return the number of rows in the footer."""
    return sum(counts_of(_open_file(source), source.path))


def counts_of(file: Any, path: str) -> list[int]:
    """Return the rows of each group; raises a FastflowError if the footer has another sum."""
    metadata = file.metadata
    counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
        raise FastflowError(
            f"{path} is damaged: its footer counts {metadata.num_rows:,} rows, and its groups {sum(counts):,}"
        )
    return counts


def footer(source: Input) -> bytes:
    """Return the footer's bytes."""
    _open_file(source)
    file = source.file
    file.seek(-8, 2)
    size = int.from_bytes(file.read(4), "little")
    file.seek(-8 - size, 2)
    return file.read(size)


def add_types(found: dict[str, Any], source: Input, layout: InputFormat) -> None:
    """Add the Arrow types of id and kept fields to ``found``; raises a FastflowError if a type differs."""
    file = _open_file(source)
    with _readable(source.path):
        schema = file.schema_arrow
        columns_of(source, schema, layout)
        for name in [*layout.keep, *([] if layout.id_field is None else [layout.id_field])]:
            kind = plain_type(schema.field(name).type)
            if found.setdefault(name, kind) != kind:
                raise FastflowError(
                    f"{source.path}: the column {name!r} is {kind}, and {found[name]} in an input before; give it one "
                    "type"
                )


def check_json(types: dict[str, Any], path: str, layout: InputFormat) -> None:
    """Raise a UsageError for a kept column with a type that JSON lacks."""
    for name in layout.keep:
        if not _fits_json(types[name]):
            raise UsageError(
                f"{path}: the column {name!r} is {types[name]}, which JSON and text cannot hold; write .parquet, or "
                f"leave out --keep {name}"
            )


def _open_file(source: Input, dictionaries: Sequence[str] = ()) -> Any:
    """Open the ParquetFile; raises a UsageError for a pipe, a FastflowError for a damaged footer."""
    _, parquet = arrow(f"{source.path}: reading Parquet")
    if source.identity is None:
        raise UsageError(f"{source.path}: Parquet is read from its end, which a pipe does not have yet; give a file")
    with _readable(source.path):
        return parquet.ParquetFile(source.file, pre_buffer=False, read_dictionary=list(dictionaries))


@contextmanager
def _readable(path: str) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        said = "cannot be read" if system_failed(error) else "is no Parquet file, or damaged"
        raise FastflowError(f"{path} {said}: {reason(error).split('.')[0]}") from error


def columns_of(source: Input, schema: Any, layout: InputFormat) -> tuple[tuple[str, ...], list[str]]:
    """Return (text columns, all columns to read); raises a FastflowError for a wrong column."""
    names, key, path = schema.names, layout.id_field, source.path
    texts = source.fields = text_fields(names, path, None, layout.field, source.fields)
    wanted = list(dict.fromkeys([*texts, *layout.keep, *([] if key is None else [key])]))
    for name in wanted:
        if name not in names:
            purpose = "to keep" if name in layout.keep else "to take the id from"
            raise FastflowError(f"{path}: no column {name!r} {purpose}; the columns are {list_names(names)}")
        if names.count(name) > 1:
            raise FastflowError(f"{path}: the column {name!r} comes {names.count(name)} times: {list_names(names)}")
    kinds = {name: plain_type(schema.field(name).type) for name in wanted}
    for name in texts:
        if not is_text(kinds[name]):
            raise FastflowError(f"{path}: the column {name!r} is {kinds[name]}, not text")
    if key is not None and not (is_text(kinds[key]) or _is_number(kinds[key])):
        raise FastflowError(f"{path}: the column {key!r} is {kinds[key]}; an id must be text, a number, true or false")
    return texts, wanted


def _records(
    batch: Any, fields: tuple[str, ...], path: str, first: int, layout: InputFormat
) -> Iterator[Record | RowFault]:
    import pyarrow

    try:
        batch.validate(full=True)  # a damaged file may point beyond the end of its dictionary
    except pyarrow.ArrowInvalid as error:
        if "UTF8" not in str(error) or not all(map(_has_all_values, batch.columns)):
            raise
        for at in range(batch.num_rows):
            columns = [_unpack(each.slice(at, 1)) for each in batch.columns]
            row = pyarrow.record_batch(columns, names=batch.schema.names)
            try:
                row.validate(full=True)
            except pyarrow.ArrowInvalid:
                yield RowFault(f"{path}, row {first + at}", "holds bytes that are not UTF-8")
            else:
                yield from _records(row, fields, path, first + at, layout)
        return

    def column(name: str) -> Any:
        return _unpack(batch.column(name))

    texts = [_values(batch.column(name)) for name in fields]
    ids = [None] * batch.num_rows if layout.id_field is None else column(layout.id_field).to_pylist()
    kept = [[value if value.is_valid else None for value in column(name)] for name in layout.keep]
    for at, row in enumerate(range(first, first + batch.num_rows)):
        found, place = tuple(values[at] for values in texts), f"{path}, row {row}"
        if None in found:
            fault = f"field {fields[found.index(None)]!r} is null, not a text"
            yield RowFault(place, fault, "fill it or remove the row")
        elif max(map(len, found)) > LONGEST:
            yield RowFault(place, TooLong.FAULT, "cut it")
        elif isinstance(identity := ids[at], float) and not math.isfinite(identity):
            yield RowFault(place, f"field {layout.id_field!r} must be a finite number")
        else:
            yield Record(join_texts(found, layout), identity, row, tuple(values[at] for values in kept))


def _has_all_values(column: Any) -> bool:  # unpacking would not check
    from pyarrow import compute

    if not hasattr(column, "dictionary"):
        return True
    ends = compute.min_max(column.indices)
    return not ends["max"].is_valid or 0 <= ends["min"].as_py() <= ends["max"].as_py() < len(column.dictionary)


def _unpack(column: Any) -> Any:
    return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column


def _values(column: Any) -> list[Any]:
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    values = column.dictionary.to_pylist()
    return [None if at is None else values[at] for at in column.indices.to_pylist()]


def plain_type(kind: Any) -> Any:
    """Return the type of a column's values, also of a dictionary column."""
    return getattr(kind, "value_type", kind) if str(kind).startswith("dictionary<") else kind


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text."""
    return str(kind) in ("string", "large_string", "string_view")


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _fits_json(kind: Any) -> bool:
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _fits_json(kind.value_type)
    if types.is_struct(kind):
        return all(_fits_json(kind.field(at).type) for at in range(kind.num_fields))
    timed = types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind)
    return is_text(kind) or _is_number(kind) or bool(timed or types.is_decimal(kind) or types.is_null(kind))
