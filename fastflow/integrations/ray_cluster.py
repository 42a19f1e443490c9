"""Ray Data for fits: import, and texts of a column."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.files.read.parquet import is_text, plain_type
from fastflow.files.read.records import listed
from fastflow.integrations.ray import find_sentence

if TYPE_CHECKING:
    import pyarrow as pa


def ray_data(purpose: str) -> Any:
    """The module ray.data."""
    try:
        import ray.data
    except ImportError as error:
        raise missing_extra("ray", str(error.name), purpose) from None
    return ray.data


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Re-raise a node's failure as the sentence that was raised there."""
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        raise FastflowError(find_sentence(str(error))) from error


def check_column(names: list[str], types: list[Any], column: str, output_column: str) -> None:
    """Raise a FastflowError for a column that is absent or not text, or an existing output column."""
    if column not in names:
        raise FastflowError(f"the dataset has no column {column!r}; its columns are {listed(names)}")
    kind = types[names.index(column)]
    if not is_text(plain_type(kind)):
        raise FastflowError(f"the column {column!r} of the dataset is {kind}, not text")
    if output_column in names:
        raise UsageError(f"the dataset has a column {output_column!r} already: name another output_column")


def texts_of(table: pa.Table, column: str) -> list[str]:
    """Return a column's texts; the error for a null names the row by its other values."""
    found = table.column(column)
    if not found.null_count:
        return list(found.to_pylist())
    row = found.to_pylist().index(None)
    beside = {name: str(table.column(name)[row])[:40] for name in table.schema.names if name != column}
    where = "".join(f" {name}={value}" for name, value in list(beside.items())[:4])
    raise FastflowError(
        f"the column {column!r} is null in {found.null_count} of {len(table)} rows of a batch, the first of them "
        f"beside{where or ' no other column'}; filter such rows out"
    )
