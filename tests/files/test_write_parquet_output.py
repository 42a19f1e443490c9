"""Embeddings in Parquet: columns, types, metadata, row groups, and a run that is continued to the same bytes."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow.files.write import parquet_output as module
from fastflow.files.write.parquet_output import ParquetOutput, write_groups
from fastflow.files.write.printing import Block

from support.outputs import META, block, vectors_of


def write(path, blocks):
    with ParquetOutput(path, META) as writer:
        writer.begin()
        for each in blocks:
            writer.write(each)
        writer.finish()
    assert [other.name for other in path.parent.iterdir()] == [path.name]
    return pq.ParquetFile(path)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_vectors_are_a_list_of_fixed_size(tmp_path, dtype):
    vectors = vectors_of(dtype, rows=7)
    file = write(tmp_path / "x.parquet", [block(vectors[:0]), block(vectors[:3]), block(vectors[3:], 3)])
    table = file.read()
    assert table.column_names == ["embedding"]
    assert str(table.schema.field("embedding").type) == f"fixed_size_list<element: {module_name(dtype)}>[5]"
    found = table["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, 5)
    assert np.array_equal(found, vectors)
    assert json.loads(table.schema.metadata[b"fastflow"]) == META


def module_name(dtype: str) -> str:
    return {"float32": "float", "float16": "halffloat"}.get(dtype, dtype)


def test_ids_fields_and_log_densities(tmp_path):
    vectors = vectors_of("float32", rows=2)
    kept = {"title": ["a", None], "n": [1, {"b": "ü"}]}
    rows = Block([0, 1], ["t", "u"], [7, "k"], vectors, np.array([-1.5, -2.0]), kept)
    table = write(tmp_path / "x.parquet", [rows]).read()
    assert table.column_names == ["id", "title", "n", "log_prob", "embedding"]
    assert table.drop(["embedding"]).to_pydict() == {
        "id": ["7", "k"], "title": ["a", None], "n": ["1", '{"b": "ü"}'], "log_prob": [-1.5, -2.0],
    }  # fmt: skip


def test_no_rows_still_have_their_width(tmp_path):
    table = write(tmp_path / "x.parquet", [block(vectors_of("int8")[:0])]).read()
    assert (table.num_rows, str(table.schema.field("embedding").type)) == (0, "fixed_size_list<element: int8>[5]")


@pytest.mark.parametrize("sizes", [[100], [1] * 100, [10, 0, 33, 57], [16, 16, 68]])
def test_row_groups_and_bytes_do_not_depend_on_the_blocks(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(module, "GROUP", 16)
    vectors = vectors_of("float32", rows=100)
    starts = np.cumsum([0, *sizes])
    (tmp_path / "out").mkdir()
    blocks = [block(vectors[a:b], int(a), ids=True) for a, b in pairwise(starts)]
    file = write(tmp_path / "out" / "x.parquet", blocks)
    groups = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
    assert groups == [16] * 6 + [4]
    table = pa.table(file.read())
    write_groups(tmp_path / "again", table.schema, table.to_batches(max_chunksize=7))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "out" / "x.parquet").read_bytes()


def test_a_continued_run_gives_the_bytes_of_a_whole_one(tmp_path):
    vectors = vectors_of("float32", rows=9)
    write(tmp_path / "x.parquet", [block(vectors[:4], ids=True), block(vectors[4:], 4, ids=True)])
    whole = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").unlink()
    with ParquetOutput(tmp_path / "x.parquet", META) as first:
        first.begin()
        first.write(block(vectors[:4], ids=True))
        position = first.sync()
        first.write(block(vectors[4:6], 4, ids=True))  # written, but the run died before it could say so
    with ParquetOutput(tmp_path / "x.parquet", META) as second:
        second.begin(position)
        second.skip(block(vectors[:4], ids=True))
        second.write(block(vectors[:0], ids=True))
        second.write(block(vectors[4:], 4, ids=True))
        second.finish()
    assert (tmp_path / "x.parquet").read_bytes() == whole


def test_small_integers_take_a_byte_each(tmp_path):
    vectors = np.random.default_rng(0).integers(-128, 128, (20_000, 64)).astype(np.int8)
    write(tmp_path / "x.parquet", [block(vectors)])
    assert (tmp_path / "x.parquet").stat().st_size < 1.15 * vectors.nbytes


def test_pages_do_not_depend_on_the_batches(tmp_path):
    vectors = vectors_of("float32", rows=20_000, width=64)
    schema = pa.schema([("id", pa.string()), ("embedding", pa.list_(pa.field("element", pa.float32()), 64))])
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 64)
    whole = pa.record_batch([pa.array([str(i) * (i % 7) for i in range(20_000)]), rows], schema=schema)
    write_groups(tmp_path / "whole", schema, [whole])
    write_groups(tmp_path / "parts", schema, [whole.slice(at, 7) for at in range(0, 20_000, 7)])
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
