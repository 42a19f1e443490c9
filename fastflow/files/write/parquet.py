"""Write embeddings to Parquet: append rows to NAME.partial as an Arrow stream, and copy them to row groups at the end.

Unlike Parquet, a stream can be continued. While it is copied, the rows are on the disk twice. Columns of JSON values
are text during the run, and typed at the end, when all values are known. The columns of a shard stay text, with their
kinds (int, text ...) in the schema, so that joined shards equal one run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastflow.files.read import plain
from fastflow.files.read.parquet import arrow
from fastflow.files.write import Block, as_text
from fastflow.files.write.outputs import OutputFile

GROUP = 16_384
KEY = b"fastflow_kinds"  # of a column's kinds in the schema's metadata
LARGEST = 2**63 - 1
EXACT = 2**53  # float64 has every whole number up to this
Kinds = dict[str, set[str]]


class ParquetOutput(OutputFile):
    """Writes .parquet: row, id, kept fields, and ``embedding`` of fixed size; metadata describe the run.

    A column of JSON values becomes int64, float64 or bool if that holds every value but null, else text; in a shard it
    stays text.
    """

    own = ("row", "embedding")

    def __init__(self, target: Path, meta: dict[str, Any]) -> None:
        self._arrow, _ = arrow(f"{target}: writing Parquet")
        super().__init__(target, meta)
        self._schema: Any = None
        self._kinds: Kinds = {}

    @classmethod
    def check_extra(cls, target: Path) -> None:
        arrow(f"{target}: writing Parquet")

    def note(self, block: Block) -> None:
        for name, values in block.columns().items():
            if name not in self.types:
                look(self._kinds, name, values)

    def encode(self, block: Block) -> bytes:
        first = self.handle.tell() == 0
        if self._schema is None:
            self._schema = self._schema_of(block)
        head = self._schema.serialize().to_pybytes() if first else b""
        return head + (self._batch(block).serialize().to_pybytes() if len(block.rows) else b"")

    def finish(self) -> None:
        self.sync()
        self.handle.seek(0)
        with self._arrow.ipc.open_stream(self._arrow.PythonFile(self.handle, "r")) as stream:
            schema = (mark_kinds if self.of_shard else set_types)(stream.schema, self._kinds)
            self.put(schema, (cast(batch, schema) for batch in stream))

    def put(self, schema: Any, batches: Iterable[Any]) -> None:
        with self.apart() as path:
            write_groups(path, schema, batches)

    def _schema_of(self, block: Block) -> Any:
        pa, numbers = self._arrow, block.vectors.dtype.name
        fields = [("row", pa.int64())]
        fields += [(name, self.types.get(name, pa.string())) for name in block.columns()]
        kind = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8(), "uint8": pa.uint8()}[numbers]
        # Parquet's name of a list's items, so that the schema read back is equal
        fields.append(("embedding", pa.list_(pa.field("element", kind), block.vectors.shape[1])))
        return pa.schema(fields, metadata={"fastflow": json.dumps(self.meta)})

    def _batch(self, block: Block) -> Any:
        pa, schema = self._arrow, self._schema
        arrays = [pa.array(list(block.rows), pa.int64())]
        arrays += [self._array(values, schema.field(name).type) for name, values in block.columns().items()]
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(block.vectors.ravel()), block.vectors.shape[1]))
        return pa.record_batch(arrays, schema=schema)

    def _array(self, values: Sequence[Any], kind: Any) -> Any:
        if kind == self._arrow.string():
            values = as_text(values)
        return self._arrow.array(values, type=kind)


def write_groups(path: Path, schema: Any, batches: Iterable[Any]) -> None:
    """Write ``batches`` in row groups of GROUP rows; equal rows give equal bytes."""
    pa, parquet = arrow(f"{path}: writing Parquet")
    # Parquet's int8 takes one byte in a dictionary, else four
    texts = [field.name for field in schema if field.name not in ("row", "embedding")]
    small = schema.field("embedding").type.value_type.bit_width == 8
    packed = [*texts, *["embedding.list.element"] * small]
    with path.open("wb") as out:
        with parquet.ParquetWriter(out, schema, use_dictionary=packed or False) as writer:
            held: list[Any] = []

            def write() -> None:
                table = pa.Table.from_batches(held, schema).combine_chunks()  # pages must not depend on the batches
                writer.write_table(table, row_group_size=GROUP)
                held.clear()

            for batch in batches:
                while batch.num_rows:
                    room = GROUP - sum(each.num_rows for each in held)
                    held.append(batch.slice(0, room))
                    batch = batch.slice(room)
                    if room == held[-1].num_rows:
                        write()
            if held:
                write()
        out.flush()
        os.fsync(out.fileno())


def look(kinds: Kinds, name: str, values: Iterable[Any]) -> None:
    """Add the kinds of ``values`` to the column ``name`` in ``kinds``."""
    kinds.setdefault(name, set()).update(kind for kind in map(_kind, values) if kind)


def set_types(schema: Any, kinds: Mapping[str, set[str]]) -> Any:
    """Return ``schema`` with a type for each column of ``kinds`` that holds its values."""
    pa, _ = arrow("writing Parquet")
    fields = [pa.field(f.name, _type(kinds[f.name])) if f.name in kinds else f for f in schema]
    return pa.schema(fields, schema.metadata)


def mark_kinds(schema: Any, kinds: Mapping[str, set[str]]) -> Any:
    """Return ``schema`` with the kinds of each column in its metadata."""
    pa, _ = arrow("writing Parquet")
    fields = [f.with_metadata({KEY: " ".join(sorted(kinds[f.name]))}) if f.name in kinds else f for f in schema]
    return pa.schema(fields, schema.metadata)


def join_schemas(schemas: Sequence[Any]) -> Any | None:
    """Return the schema of one run from its parts' schemas; None if these do not fit."""
    kinds: Kinds = {}
    for schema in schemas:
        for field in schema:
            if KEY in (field.metadata or {}):
                kinds.setdefault(field.name, set()).update(field.metadata[KEY].decode().split())
    found = [set_types(schema, kinds) for schema in schemas]
    # a column with kinds in one part must have them in all
    marks = [[field.name for field in schema if KEY in (field.metadata or {})] for schema in schemas]
    same = all(each.equals(found[0], check_metadata=True) for each in found)
    return found[0] if same and all(each == marks[0] for each in marks) else None


def cast(batch: Any, schema: Any) -> Any:
    """Cast the columns of a batch to ``schema``."""
    pa, _ = arrow("writing Parquet")
    return pa.record_batch(batch.columns, schema=schema)


def _kind(value: Any) -> str:
    value = plain(value)
    if value is None:
        return ""
    if type(value) is int:
        return "int" if abs(value) <= EXACT else "long" if -LARGEST - 1 <= value <= LARGEST else "other"
    return {bool: "bool", float: "float", str: "text"}.get(type(value), "other")


def _type(kinds: set[str]) -> Any:
    pa, _ = arrow("writing Parquet")
    if kinds and kinds <= {"int", "long"}:
        return pa.int64()
    if kinds and kinds <= {"int", "float"}:
        return pa.float64()
    return pa.bool_() if kinds == {"bool"} else pa.string()
