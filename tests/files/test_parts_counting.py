"""Counting before splitting: as many rows as are read, whatever the format, and the same identity for equal content."""

from __future__ import annotations

import gzip
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from fastflow.errors import FastflowError
from fastflow.files.parts.counting import counted, span, split_of
from fastflow.files.read.inputs import Input
from fastflow.files.read.records import Layout
from fastflow.files.read.sources import Sources
from fastflow.files.read.texts import read_records

MANY = [f"line {i} of a file" for i in range(20_000)]
CONTENTS = [  # a file and its texts
    ("x.txt", b"", []), ("x.txt", b"\n", [""]), ("x.txt", b"a", ["a"]), ("x.txt", b"a\n\nb", ["a", "", "b"]),
    ("x.txt", b"a\r\nb\n\n", ["a", "b", ""]), ("x.txt", "\n".join(MANY).encode(), MANY),
    ("x.jsonl", b"", []), ("x.jsonl", b'"a"\n"b"\n\n \n', ["a", "b"]), ("x.jsonl", b'"a"\n{"text": "b"}', ["a", "b"]),
    ("x.csv", b"", []), ("x.csv", b"text,n\n", []), ("x.csv", b'text,n\n"a\nb",1\nc,2\n\n', ["a\nb", "c"]),
    ("x.tsv", b"text\tn\na\t1\nb\t2", ["a", "b"]), ("x.tsv", b"text\tn\na\t1\nb\t2\n\n\n", ["a", "b"]),
]  # fmt: skip


def halves(pack, data: bytes) -> bytes:
    """Two members or frames, one after the other."""
    return pack(data[: len(data) // 2]) + pack(data[len(data) // 2 :])


def count(path, layout=Layout()):  # noqa: B008 (immutable)
    with Input(str(path)) as source:
        return counted(source, layout)


@pytest.mark.parametrize(("name", "data", "texts"), CONTENTS)
def test_texts_and_their_count_are_those_of_the_plain_file_however_it_is_packed(tmp_path, name, data, texts):
    gz, zst = gzip.compress, zstandard.compress
    forms = {"": data, ".gz": gz(data), ".zst": zst(data), ".b.gz": halves(gz, data), ".b.zst": halves(zst, data)}
    for suffix, content in forms.items():
        path = tmp_path / (f"two.{name}" if suffix.startswith(".b") else name)
        path = path.with_name(path.name + suffix.removeprefix(".b"))
        path.write_bytes(content)
        assert [record.texts for record in read_records(str(path))] == [(text,) for text in texts]
        found = count(path)
        assert (found.rows, found.sha256) == (len(texts), hashlib.sha256(data).hexdigest())
        assert suffix or found.size == len(data)


def test_texts_that_end_with_nul_are_counted(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\nb\0c\0d")
    assert count(tmp_path / "x.txt", Layout(null=True)).rows == 3


def test_parquet_is_counted_by_its_footer(tmp_path):
    pq.write_table(pa.table({"text": ["a"] * 100}), tmp_path / "x.parquet", row_group_size=7)
    pq.write_table(pa.table({"text": ["b"] * 100}), tmp_path / "y.parquet", row_group_size=7)
    found, other = count(tmp_path / "x.parquet"), count(tmp_path / "y.parquet")
    assert found.rows == other.rows == 100
    assert found.sha256 != other.sha256  # the statistics of its columns are in it


def test_a_fault_is_found_by_the_count(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(FastflowError, match=r"x\.txt, line 2: byte 1 is not UTF-8"):
        count(tmp_path / "x.txt")


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
