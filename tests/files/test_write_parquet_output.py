"""Embeddings in Parquet: types of its columns, row groups, and pages that do not depend on how rows came."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow.files.write import parquet_output as module
from fastflow.files.write.parquet_output import ParquetOutput, write_groups

from support.outputs import META, block, vectors_of


def write(path, blocks):
    with ParquetOutput(path, META) as writer:
        writer.begin()
        for each in blocks:
            writer.write(each)
        writer.finish()
    return pq.ParquetFile(path)


@pytest.mark.parametrize(
    ("dtype", "element"), [("float32", "float"), ("float16", "halffloat"), ("int8", "int8"), ("uint8", "uint8")]
)
def test_vectors_are_a_list_of_fixed_size(tmp_path, dtype, element):
    schema = write(tmp_path / "x.parquet", [block(vectors_of(dtype))]).schema_arrow
    assert schema.names == ["embedding"]
    assert str(schema.field("embedding").type) == f"fixed_size_list<element: {element}>[5]"


@pytest.mark.parametrize("sizes", [[100], [1] * 100, [10, 0, 33, 57], [16, 16, 68]])
def test_row_groups_and_bytes_do_not_depend_on_the_blocks(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(module, "GROUP", 16)
    vectors, starts = vectors_of("float32", rows=100), np.cumsum([0, *sizes])
    blocks = [block(vectors[a:b], int(a), ids=True) for a, b in pairwise(starts)]
    file = write(tmp_path / "x.parquet", blocks)
    groups = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
    assert groups == [16] * 6 + [4]
    table = pa.table(file.read())
    write_groups(tmp_path / "again", table.schema, table.to_batches(max_chunksize=7))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "x.parquet").read_bytes()


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
