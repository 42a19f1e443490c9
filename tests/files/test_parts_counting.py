"""Counting before splitting: as many rows as are read, whatever the format, and the same identity for equal content."""

from __future__ import annotations

import gzip
import hashlib
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from fastflow.errors import FastflowError, UsageError
from fastflow.files.parts.counting import counted, span, split_of
from fastflow.files.read.inputs import Input
from fastflow.files.read.records import Layout
from fastflow.files.read.sources import Sources
from fastflow.files.read.texts import read_records

CONTENTS = {
    "x.txt": [b"", b"\n", b"a", b"a\n\nb", b"a\r\nb\n\n"],
    "x.jsonl": [b"", b'"a"\n"b"\n\n \n', b'"a"\n{"text": "b"}'],
    "x.csv": [b"", b"text,n\n", b'text,n\n"a\nb",1\nc,2\n\n'],
    "x.tsv": [b"text\tn\na\t1\nb\t2"],
}


def count(path, layout=Layout()):  # noqa: B008 (immutable)
    with Input(str(path)) as source:
        return counted(source, layout)


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, each in CONTENTS.items() for data in each])
def test_the_count_is_that_of_the_records_and_packing_changes_nothing(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    found = count(tmp_path / name)
    assert found.rows == sum(1 for _ in read_records(str(tmp_path / name)))
    assert (found.size, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    for suffix, pack in ((".gz", gzip.compress), (".zst", zstandard.compress)):
        (tmp_path / (name + suffix)).write_bytes(pack(data))
        again = count(tmp_path / (name + suffix))
        assert (again.rows, again.sha256) == (found.rows, found.sha256)


def test_texts_that_end_with_nul_are_counted(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\nb\0c\0d")
    assert count(tmp_path / "x.txt", Layout(null=True)).rows == 3


def test_parquet_is_counted_by_its_footer(tmp_path):
    pq.write_table(pa.table({"text": ["a"] * 100}), tmp_path / "x.parquet", row_group_size=7)
    pq.write_table(pa.table({"text": ["b"] * 100}), tmp_path / "y.parquet", row_group_size=7)
    found, other = count(tmp_path / "x.parquet"), count(tmp_path / "y.parquet")
    assert found.rows == other.rows == 100
    assert found.sha256 != other.sha256  # the statistics of its columns are in it


def test_faults_are_found_by_the_count(tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(FastflowError, match=r"x\.txt, line 2: byte 1 is not UTF-8"):
        count(tmp_path / "x.txt")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    with pytest.raises(
        UsageError, match="--shard counts the rows before it takes its part, and cannot read standard in"
    ):
        count("-")


@pytest.mark.parametrize("rows", [0, 1, 2, 10, 101])
@pytest.mark.parametrize("of", [1, 2, 3, 7, 200])
def test_spans_cover_every_row_once_and_evenly(rows, of):
    spans = [span(rows, (number, of)) for number in range(1, of + 1)]
    assert [row for start, stop in spans for row in range(start, stop)] == list(range(rows))
    assert {stop - start for start, stop in spans} <= {rows // of, -(-rows // of)}


def test_a_split_is_over_all_inputs_which_can_be_read_again(tmp_path):
    paths = []
    for name, count_ in (("a", 5), ("b", 0), ("c", 6)):
        paths.append(str(tmp_path / f"{name}.jsonl"))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(f"{name}{i}") + "\n" for i in range(count_)))
    with Sources(paths) as sources:
        split = split_of(sources, Layout(), (2, 3))
        assert (split.counts, split.start, split.stop) == ([5, 0, 6], 3, 7)
        assert [row.record.texts[0] for row in sources.rows(Layout())][3:7] == ["a3", "a4", "c0", "c1"]
