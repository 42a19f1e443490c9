"""Texts from Parquet: which column, row groups that are skipped, types that are kept, and files that are damaged."""

from __future__ import annotations

import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.files.read import parquet
from fastflow.files.read.inputs import Input
from fastflow.files.read.parquet import footer, parquet_records, row_count
from fastflow.files.read.records import Layout

from support.commands import run
from support.corpus import regressions
from support.memory import grown


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
    before = "from fastflow.files.read.texts import read_records; list(read_records(sys.argv[1]))"
    work = f"assert sum(1 for _ in read_records(sys.argv[2])) == {20 * rows}"  # 80 MB of texts, 160 MB of blobs
    assert grown(run_python, before, work, path, tmp_path / "big.parquet") < 50_000


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()])
def test_every_way_to_store_text_is_text(tmp_path, kind):
    pq.write_table(pa.table({"text": pa.array(["a", "ü", "a"], kind)}), tmp_path / "in.parquet")
    assert [record.texts[0] for record in read(tmp_path / "in.parquet")] == ["a", "ü", "a"]


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
    assert found.column_names == ["n", *(name for name in TYPED if name != "n"), "embedding"]
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


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("the name of a column is not UTF-8", "['a', 'dog', '']"),  # of one that is not read
        ("pyarrow ends the process if the description of a column is asked for", "row 2: cannot be read"),
        ("the footer counts other rows than the groups", "is damaged: its footer counts -4 rows, and its groups 3"),
        ("a group has fewer texts than rows", "is damaged: a row group should end at row 3, and ends at 0"),
        ("an index lies beyond the end of its dictionary", "row 1: cannot be read: In column 0: Invalid: Dictionary"),
    ],
)
def test_a_damaged_description_is_no_end_of_the_process(tmp_path, run_python, fault, sentence):
    (tmp_path / "in.parquet").write_bytes(regressions("parquet")[fault][1:])
    done = run_python(
        """
        import sys
        from fastflow.errors import FastflowError
        from fastflow.files.read.texts import read_records
        try:
            print([record.texts[0] for record in read_records(sys.argv[1])])
        except FastflowError as error:
            print(error)
        """.replace("\n        ", "\n"),
        tmp_path / "in.parquet",
    )
    assert done.returncode == 0, done.stderr
    assert sentence in done.stdout
