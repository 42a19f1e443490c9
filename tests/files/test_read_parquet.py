"""Texts from Parquet: which column, row groups that are skipped, types that are kept, and files that are damaged."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import parquet
from fastflow.files.read.inputs import Input
from fastflow.files.read.parquet import footer, parquet_records, row_count
from fastflow.files.read.records import Layout

from support.commands import assert_one_sentence, run


@pytest.fixture
def path(tmp_path, sentences):
    table = pa.table({"key": pa.array(range(100), pa.int64()), "text": sentences[:100], "x": [[i] for i in range(100)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=16)
    return tmp_path / "in.parquet"


def read(path, layout=Layout(), skip=0):  # noqa: B008 (immutable)
    with Input(str(path)) as source:
        return list(parquet_records(source, layout, skip))


def test_rows_with_ids_and_fields(path, sentences):
    found = read(path, Layout(id_field="key", keep=("x",)))
    assert [record.texts for record in found] == [(text,) for text in sentences[:100]]
    assert [record.id for record in found] == list(range(100))
    assert [record.line for record in found] == list(range(100))
    assert [record.kept[0].as_py() for record in found] == [[i] for i in range(100)]


@pytest.mark.parametrize("skip", [0, 1, 15, 16, 17, 99, 100])
def test_rows_are_skipped_by_row_groups(path, skip, monkeypatch):
    groups = []
    plain = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda self, *a, **o: groups.append(o["row_groups"][0]) or plain(self, *a, **o)
    )
    assert [record.line for record in read(path, skip=skip)] == list(range(skip, 100))
    assert groups == [group for group in range(7) if min(100, 16 * group + 16) > skip]


@pytest.mark.slow
def test_only_the_columns_asked_for_are_read_and_one_group_at_a_time(tmp_path, path, run_python):
    """The column that is not asked for is far larger than the memory that reading the file takes."""
    rows, noise = 2_000, np.random.default_rng(0)
    schema = pa.schema([("text", pa.string()), ("blob", pa.binary())])
    with pq.ParquetWriter(tmp_path / "big.parquet", schema) as writer:
        for _ in range(20):
            blobs = [noise.bytes(4_000) for _ in range(rows)]
            texts = [noise.bytes(1_000).hex() for _ in range(rows)]
            writer.write_table(pa.table({"text": texts, "blob": blobs}, schema))
    code = (
        "import resource, sys\nfrom fastflow.files.read.texts import read_records\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "list(read_records(sys.argv[1])); before = peak()\n"
        "print(sum(1 for _ in read_records(sys.argv[2])), peak() - before)"
    )
    done = run_python(code, path, tmp_path / "big.parquet")
    assert done.stderr == ""
    count, grown = map(int, done.stdout.split())
    assert count == 20 * rows  # 80 MB of texts in 20 groups, 160 MB of blobs
    assert grown < 50_000


@pytest.mark.parametrize(
    ("column", "layout", "message"),
    [
        (
            {"a": ["x"], "b": ["y"]},
            Layout(),
            r"in\.parquet: which field is the text\? Use --text-field; the fields are a, b",
        ),
        ({"text": ["x"]}, Layout(field="b"), r"in\.parquet: no field 'b'; the fields are text"),
        ({"text": [1]}, Layout(), r"in\.parquet: the column 'text' is int64, not text"),
        (
            {"text": ["x", None]},
            Layout(),
            r"in\.parquet, row 1: field 'text' is null, not a text; fill it or remove the row$",
        ),
        ({"text": ["x"]}, Layout(keep=("b",)), r"in\.parquet: no column 'b' to keep; the columns are text"),
        ({"text": ["x"]}, Layout(id_field="b"), r"in\.parquet: no column 'b' to take the id from"),
        (
            {"text": ["x"], "b": [[1]]},
            Layout(id_field="b"),
            r"the column 'b' is list<.*>; an id must be text, a number",
        ),
        (
            {"text": ["x"], "b": [np.inf]},
            Layout(id_field="b"),
            r"in\.parquet, row 0: field 'b' must be a finite number",
        ),
    ],
)
def test_columns_that_are_refused(tmp_path, column, layout, message):
    pq.write_table(pa.table(column), tmp_path / "in.parquet")
    with pytest.raises(FastflowError, match=message):
        read(tmp_path / "in.parquet", layout)


def test_a_column_that_comes_twice(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(FastflowError, match="the column 'text' comes 2 times: text, text"):
        read(tmp_path / "in.parquet")


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()])
def test_every_way_to_store_text_is_text(tmp_path, kind):
    pq.write_table(pa.table({"text": pa.array(["a", "ü", "a"], kind)}), tmp_path / "in.parquet")
    assert [record.texts[0] for record in read(tmp_path / "in.parquet")] == ["a", "ü", "a"]


def test_files_that_are_none_or_damaged(tmp_path, path):
    (tmp_path / "no.parquet").write_bytes(b"plain text, no table")
    with pytest.raises(FastflowError, match=r"no\.parquet is no Parquet file, or damaged: "):
        read(tmp_path / "no.parquet")
    data = bytearray(path.read_bytes())
    data[200:2000] = bytes(1800)
    (tmp_path / "no.parquet").write_bytes(data)
    with pytest.raises(FastflowError, match=r"no\.parquet, row \d+: cannot be read: "):
        read(tmp_path / "no.parquet")


def test_a_pipe_is_refused(model, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"PAR1")))
    with pytest.raises(UsageError, match="Parquet is read from its end"):
        read("-")


def test_without_pyarrow_the_command_to_install_it_is_said(model, path, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("embed", path, "-m", model, "--quiet")
    assert_one_sentence(
        result, 1, "reading Parquet needs pyarrow, which is not installed: run pip install -e '.[parquet]'"
    )
    (tmp_path / "x.txt").write_text("a\n")
    result = run("embed", tmp_path / "x.txt", "-m", model, "-o", tmp_path / "x.parquet", "--quiet")
    assert_one_sentence(result, 1, "writing Parquet needs pyarrow, which is not installed: run pip install -e")


def test_the_count_and_the_footer_are_those_of_the_file(path):
    with Input(str(path)) as source:
        assert row_count(source) == 100
        assert footer(source) in path.read_bytes()[-len(footer(source)) - 8 :]
        assert len(footer(source)) > 100


TYPED = {
    "when": pa.array([datetime.datetime(2020, 1, 1), None], pa.timestamp("us", "UTC")),
    "price": pa.array([decimal.Decimal("1.25"), None]),
    "deep": pa.array([[{"a": 1}], None]),
    "point": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
    "kind": pa.array(["x", "x"]).dictionary_encode(),
    "n": pa.array([1, None], pa.uint8()),
}


def test_fields_keep_their_types_from_parquet_to_parquet(model, tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"], **TYPED}), tmp_path / "in.parquet")
    arguments = ("--keep", ",".join(TYPED), "--id-field", "n", "-o", tmp_path / "out.parquet", "--quiet")
    result = run("embed", tmp_path / "in.parquet", "-m", model, *arguments)
    assert result.exit_code == 0, result.stderr
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["id", *TYPED, "embedding"]
    assert found.schema.field("id").type == pa.uint8()
    for name, want in TYPED.items():
        assert found[name].to_pylist() == want.to_pylist()
        assert found.schema.field(name).type == (pa.string() if name == "kind" else want.type)
    assert np.array_equal(np.array(found["embedding"].to_pylist(), np.float32), Runtime(model).encode(["a", "b"]))


def test_fields_of_parquet_in_json(model, tmp_path):
    values = {"n": [1, None], "deep": [[{"a": 1.5}], [{"a": np.nan}]]}
    pq.write_table(pa.table({"text": ["a", "b"], **values}), tmp_path / "in.parquet")
    result = run("embed", tmp_path / "in.parquet", "-m", model, "--keep", "n,deep", "--quiet")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["n"], row["deep"]) for row in rows] == [(1, [{"a": 1.5}]), (None, [{"a": None}])]


def test_a_repeated_text_is_held_once(tmp_path):
    """3,000 rows of one megabyte each are more than an array of Arrow can hold, and 3 GB as text."""
    text = "word " * 200_000
    repeated = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 1000, pa.int32()), pa.array([text, "other"]))
    pq.write_table(pa.table({"text": repeated}), tmp_path / "in.parquet")
    with Input(str(tmp_path / "in.parquet")) as source:
        records = parquet_records(source, Layout())
        first = next(records)
        assert first.texts == (text,)
        assert next(records).texts == ("other",)
        with pytest.raises(FastflowError, match="row 2: field 'text' is null"):
            next(records)
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array([text]))
    pq.write_table(pa.table({"text": repeated}), tmp_path / "in.parquet")
    found = read(tmp_path / "in.parquet")
    assert len(found) == 3000
    assert sum(1 for _ in {id(record.texts[0]) for record in found}) <= 2  # one of each batch


def test_long_rows_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    texts = [f"{i} " * 500 for i in range(200)]
    pq.write_table(pa.table({"text": texts, "n": range(200)}), tmp_path / "in.parquet", use_dictionary=False)
    sizes = []
    plain = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda self, n, **o: sizes.append(n) or plain(self, n, **o))
    monkeypatch.setattr(parquet, "BYTES", 10_000)
    assert [record.texts[0] for record in read(tmp_path / "in.parquet", Layout(field="text"))] == texts
    assert 1 <= sizes[0] <= 20
    monkeypatch.setattr(parquet, "BYTES", 1)
    assert [record.line for record in read(tmp_path / "in.parquet", Layout(field="text"))] == list(range(200))


def test_a_damaged_file_is_one_line(tmp_path, path):
    content = bytearray(path.read_bytes())
    for place in range(4, len(content) - 600, 97):
        content[place] ^= 0xFF
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(FastflowError, match=r"bad\.parquet") as raised:
        read(tmp_path / "bad.parquet", Layout(field="text"))
    assert "\n" not in str(raised.value)
