"""The columns of a .db and of Parquet: types, schema and reading back."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow import Runtime, __version__
from fastflow.errors import FastflowError
from fastflow.files.database import (
    DatabaseFile,
    blocks,
    columns_of,
    fold_case,
    matrix,
    quote_name,
    reading,
    to_column,
    width_of,
)
from fastflow.files.shards import merging
from fastflow.files.shards.manifest import manifest_path, read_manifest
from fastflow.files.write import Block, parquet
from fastflow.files.write.parquet import (
    ParquetOutput,
    as_text,
    cast,
    join_schemas,
    look,
    mark_kinds,
    set_types,
    write_groups,
)

from support.commands import assert_one_sentence, run
from support.databases import make, read
from support.outputs import META, block, vectors_of
from support.refusals import refuses
from support.runs import check_parts
from support.written import read_back


def declared(path):
    with sqlite3.connect(path) as db:
        return {name: kind for _, name, kind, *_ in db.execute("PRAGMA table_info(texts)")}


def test_columns_have_the_type_that_their_values_share(tmp_path):
    kept = {
        "title": ["a", None], "n": [1, 2], "x": [0.5, -1.0], "mixed": [1, "one"], 'odd "name"; --': [True, {"b": "ü"}],
        "large": [2**63, -(2**63)],
    }  # fmt: skip
    with DatabaseFile(tmp_path / "x.db", META) as writer:
        writer.begin()
        writer.write(Block([5, 6], ["t\0t", "ü"], vectors_of("float32", rows=2), {"id": [7, "k"]}, kept))
        writer.finish()
    first, second = read(tmp_path / "x.db")[0]
    assert [first[name] for name in ("row", "text", "id", *kept)] == [
        5, "t\0t", 7, "a", 1, 0.5, 1, 1, "9223372036854775808"
    ]  # fmt: skip
    assert [second[name] for name in kept] == [None, 2, -1.0, "one", '{"b": "ü"}', -(2**63)]
    assert declared(tmp_path / "x.db") == {
        "row": "INTEGER", "text": "TEXT", "id": "", "title": "TEXT", "n": "INTEGER", "x": "REAL", "mixed": "",
        'odd "name"; --': "", "large": "", "vector": "BLOB",
    }  # fmt: skip


def test_values_that_look_like_others(tmp_path):
    path = make(tmp_path / "x.db", vectors_of("float32", rows=4), {}, year=["1999", "2001", "007", "2005"])
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT year FROM texts").fetchall() == [("1999",), ("2001",), ("007",), ("2005",)]
        assert db.execute("SELECT count(*) FROM texts WHERE year > 2000").fetchone() == (2,)
    wanted = [1, None, 2, 2.0, "a", "[1]", None, str(2**70)]
    found = [to_column(value) for value in (True, None, 2, 2.0, "a", [1], float("nan"), 2**70)]
    assert list(map(repr, found)) == list(map(repr, wanted))
    assert quote_name('a "b"') == '"a ""b"""'
    assert fold_case("ÄbC") == "Äbc"
    assert [width_of({"precision": p, "dim": 12}) for p in ("uint8", "binary", "ubinary")] == [12, 2, 2]


def test_the_run_is_described(model, corpus, tmp_path, sentences):
    target, runtime = tmp_path / "x.db", Runtime(model)
    options = ["--normalize", "--dim", "12", "--precision", "ubinary", "--prompt", "so "]
    assert run("embed", corpus, "-m", model, "-o", target, "--quiet", *options).exit_code == 0
    _, about = read(target)
    assert about == {
        "fingerprint": runtime.fingerprint, "backend": runtime.backend, "dtype": str(runtime.info()["dtype"]),
        "precision": "ubinary", "normalized": 1, "dim": 12, "truncate_dim": 12, "prompt": "so ", "format": 1,
        "version": __version__, "id_field": None, "text_field": None, "model": str(model),
    }  # fmt: skip
    want = runtime.encode(sentences, None, True, truncate_dim=12, precision="ubinary", prompt="so ")
    assert np.array_equal(read_back(target)[0], want)


def test_names_that_only_look_alike_are_kept(model, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a", "ID": 4, "Ä": 5, "ä": 6}) + "\n")
    command = ["embed", tmp_path / "in.jsonl", "-m", model, "--quiet", "--keep", "ID,Ä,ä", "-o", tmp_path / "x.db"]
    assert run(*command).exit_code == 0
    assert [row[name] for row in read(tmp_path / "x.db")[0] for name in ("ID", "Ä", "ä")] == [4, 5, 6]


def test_what_sqlite_cannot_write_is_a_sentence(tmp_path):
    target, vectors = tmp_path / "x.db", vectors_of("float32")
    with DatabaseFile(target, META) as writer:
        writer.begin()
        writer.write(block(vectors))
        writer.write(block(vectors))  # the same row numbers again, as no input gives them
        with pytest.raises(FastflowError, match=r"x\.db cannot be written: UNIQUE constraint failed"):
            writer.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["x.db.partial"]


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "a ü?#%.db", vectors_of("float32"), {}, n=list(range(7)))


def test_nothing_can_be_written(path):
    before = path.read_bytes()
    with reading(path) as db:
        assert columns_of(db) == ["row", "text", "n"]
        for sql in ("DELETE FROM texts", "CREATE TABLE x (a)", "PRAGMA user_version = 3"):
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                db.execute(sql)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_rows_are_read_back(path):
    first, rest = blocks(path)
    assert (len(first.rows), first.vectors.shape, first.vectors.dtype) == (0, (0, 5), np.float32)
    assert (rest.rows, rest.kept) == (tuple(range(7)), {"n": tuple(range(7))})
    assert np.array_equal(rest.vectors, vectors_of("float32"))


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
NONE = "is no .db of fastflow embed"
RUN = "INSERT OR REPLACE INTO run VALUES"
ROW = "DROP TABLE texts; CREATE TABLE texts (row, text, vector, n); INSERT INTO texts VALUES"
LOOSE = "CREATE TABLE t AS SELECT * FROM texts; DROP TABLE texts; ALTER TABLE t RENAME TO texts;"
SPOILT = [  # what is done to a sound file, sentence
    ("DROP TABLE run", f"{NONE}, or damaged: no such table: run"),
    ("ALTER TABLE texts RENAME COLUMN vector TO v", f"{NONE}, or damaged: no column vector"),
    ("UPDATE run SET value = 2 WHERE name = 'format'", "is of version 2 of .db, and this fastflow reads 1; update"),
    ("UPDATE run SET value = 'x' WHERE name = 'dim'", "its table run has no precision or dim"),
    ("DELETE FROM run WHERE name = 'precision'", "its table run has no precision or dim"),
    (f"{RUN} ('fingerprint', x'00')", "fingerprint in its table run is b'\\x00'"),
    (f"{RUN} ('prompt', x'00')", "prompt in its table run is b'\\x00'"),
    (f"{RUN} ('truncate_dim', x'00')", "truncate_dim in its table run is b'\\x00'"),
    (f"DROP TABLE run; CREATE VIEW run AS {ENDLESS} i AS name, i AS value FROM n", f"{NONE}: run is not a plain table"),
    (
        f"DROP TABLE texts; CREATE VIEW texts AS {ENDLESS} i AS row, 'a' AS text, x'00' AS vector FROM n",
        f"{NONE}: texts is not a plain table",
    ),
    (
        "DROP TABLE texts; CREATE VIRTUAL TABLE texts USING fts5(row, text, vector)",
        f"{NONE}: texts is not a plain table",
    ),
    (f"{ROW} (NULL, 'a', x'00', 1)", "row None comes after row -1"),
    (f"{ROW} (1e300, 'a', x'00', 1)", "row 1e+300 comes after row -1"),
    (f"{ROW} (-3, 'a', x'00', 1)", "row -3 comes after row -1"),
    (f"{ROW} ('x', 'a', x'00', 1)", "row 'x' comes after row -1"),
    (f"{ROW} (0, x'61', x'00', 1)", "row 0: its text is bytes, not text"),
    (f"{ROW} (0, 'a', 'b', 1)", "row 0: its vector is not 5 numbers of float32"),
    (f"{LOOSE} UPDATE texts SET vector = NULL WHERE row = 4", "row 4: its vector is not 5 numbers of float32"),
    (f"{LOOSE} UPDATE texts SET vector = 'abc' WHERE row = 4", "row 4: its vector is not 5 numbers of float32"),
    (f"{LOOSE} INSERT INTO texts SELECT * FROM texts WHERE row = 4", "row 4 comes after row 4"),
]


@pytest.mark.parametrize(("sql", "sentence"), SPOILT)
def test_a_file_that_is_not_as_it_was_made_is_refused(path, sql, sentence):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(sql)
    with pytest.raises((FastflowError, ValueError)) as caught:
        list(blocks(path))
    assert sentence in str(caught.value)


def test_no_database_at_all(tmp_path):
    os.mkfifo(tmp_path / "pipe.db")
    (tmp_path / "text.db").write_text("one text\n" * 1000)
    for name, sentence in {"absent.db": "No such file", "pipe.db": "it is not a file", "text.db": NONE}.items():
        refuses(lambda path: reading(path).__enter__(), tmp_path / name, f"{name} …{sentence}")


def test_a_number_that_is_none_is_named_by_its_row():
    for dtype in ("<f4", "<f2"):
        for bad in (np.nan, np.inf, -np.inf):
            vectors = [np.array([1, 2], dtype).tobytes(), np.array([3, bad], dtype).tobytes()]
            with pytest.raises(ValueError, match="row 8: its vector holds NaN or infinity"):
                matrix([7, 8], vectors, np.dtype(dtype), 2)


COLUMNS = {  # name -> type, values
    "whole": ("int64", [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), None]),
    "number": ("double", [0.1, 1e-300, 1.7976931348623157e308, 5e-324, -2.5e16, -0.0, 1e22]),
    "both": ("double", [1, 2.5, 2**53, -(2**53)]),
    "flag": ("bool", [True, None, False]),
    "text": ("string", ["a", "1", "true", "null", "", None]),
    "nothing": ("string", [None, None]),
    "flag and number": ("string", [True, 1]),
    "text and number": ("string", ["1", 1, None]),
    "too exact": ("string", [2**53 + 1, 0.5]),
    "too large": ("string", [2**63, 1]),
    "list": ("string", [[1, "ü"], None]),
    "object": ("string", [{"a": None}]),
    "no values": ("string", []),
}


def column(values):
    kinds, batch = {}, pa.record_batch({"x": pa.array(as_text(values), pa.string())})
    for value in values:
        look(kinds, "x", [value])
    return cast(batch, set_types(batch.schema, kinds))["x"]


@pytest.mark.parametrize("name", COLUMNS)
def test_the_type_holds_all_values(name):
    kind, values = COLUMNS[name]
    found = column(values)
    assert str(found.type) == kind
    if kind == "string":
        want = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        assert found.to_pylist() == want
    else:
        assert list(map(repr, found.to_pylist())) == [repr(float(v) if kind == "double" else v) for v in values]


def test_schemas_of_parts():
    schema = pa.schema([("x", pa.string()), ("y", pa.string()), ("z", pa.int8())], metadata={"fastflow": "{}"})
    parts = [mark_kinds(schema, {"x": {"int"}, "y": set()}), mark_kinds(schema, {"x": {"float"}, "y": {"bool"}})]
    found = join_schemas(parts)
    assert found.equals(pa.schema([("x", pa.float64()), ("y", pa.bool_()), ("z", pa.int8())], {"fastflow": "{}"}), True)
    assert join_schemas([*parts, schema]) is None  # of a part whose columns carry nothing
    assert join_schemas([parts[0], parts[1].remove_metadata()]) is None
    assert join_schemas([schema, schema]).equals(schema, check_metadata=True)


@pytest.fixture
def desk(tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"text": text, "id": i, "n": i if i < 30 else i + 0.5, "mixed": i if i < 30 else "?", "year": 1990 + i}
        for i, text in enumerate(sentences[:40])
    ]
    del rows[7]["year"], rows[7]["n"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "in.csv").write_text("text,n\nhello,1\n")
    return rows


OPTIONS = ("--keep", "n,mixed,year", "--id-field", "id")
TYPES = {"id": "int64", "n": "double", "mixed": "string", "year": "int64"}


def types_of(path):
    return {f.name: str(f.type) for f in pq.read_schema(path) if f.name not in ("row", "embedding")}


def test_a_run_writes_numbers_as_numbers(model, desk):
    result = run("embed", "in.jsonl", "-m", model, "--quiet", *OPTIONS, "-o", "out.parquet")
    assert result.exit_code == 0, result.stderr
    table = pq.read_table("out.parquet")
    assert types_of("out.parquet") == TYPES
    assert table["year"].to_pylist() == [row.get("year") for row in desk]
    assert table["n"].to_pylist() == [row.get("n") for row in desk]
    assert table["mixed"].to_pylist() == [str(row["mixed"]) for row in desk]
    assert table["id"].to_pylist() == list(range(40))
    run("embed", "in.csv", "-m", model, "--quiet", "--keep", "n", "-o", "of_csv.parquet")
    assert types_of("of_csv.parquet") == {"n": "string"}


@pytest.mark.slow
@pytest.mark.parametrize("of", [2, 4, 50])
def test_parts_are_text_and_joined_to_the_columns_of_one_run(model, desk, monkeypatch, of):
    monkeypatch.setattr(merging, "ROWS", 4)
    monkeypatch.setattr(parquet, "GROUP", 16)
    check_parts(".parquet", of, "embed", "in.jsonl", "-m", model, *OPTIONS)
    assert all(set(types_of(f"parts/{number}.parquet").values()) == {"string"} for number in range(1, of + 1))
    assert pq.read_table(f"parts/{of}.parquet")["year"][0].as_py().startswith("20")
    assert types_of("out.parquet") == TYPES


def test_a_part_that_carries_no_kinds_is_named(model, desk, tmp_path):
    part = tmp_path / "parts" / "2.parquet"
    check_parts(".parquet", 2, "embed", "in.jsonl", "-m", model, *OPTIONS)
    table = pq.read_table(part)
    bare = pa.schema([field.remove_metadata() for field in table.schema], table.schema.metadata)
    pq.write_table(table.cast(bare), part)
    read_manifest(manifest_path(part)).add_hash(part).write(part)
    result = run("merge", "parts", "-o", "out.parquet")
    assert_one_sentence(result, 1, "parts/2.parquet has other columns than parts/1.parquet; make the parts again")


def write(path, blocks):
    with ParquetOutput(path, META) as writer:
        writer.begin()
        for each in blocks:
            writer.write(each)
        writer.finish()
    return pq.ParquetFile(path)


@pytest.mark.parametrize("sizes", [[100], [1] * 100, [10, 0, 33, 57], [16, 16, 68]])
def test_row_groups_and_bytes_do_not_depend_on_the_blocks(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(parquet, "GROUP", 16)
    vectors, starts = vectors_of("float32", rows=100), np.cumsum([0, *sizes])
    blocks = [block(vectors[a:b], int(a), ids=True) for a, b in pairwise(starts)]
    file = write(tmp_path / "x.parquet", blocks)
    groups = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
    assert groups == [16] * 6 + [4]
    table = pa.table(file.read())
    write_groups(tmp_path / "again", table.schema, table.to_batches(max_chunksize=7))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "x.parquet").read_bytes()


def test_vectors_are_a_list_of_fixed_size(tmp_path):
    for dtype, element in {"float32": "float", "float16": "halffloat", "int8": "int8", "uint8": "uint8"}.items():
        schema = write(tmp_path / f"{dtype}.parquet", [block(vectors_of(dtype))]).schema_arrow
        assert schema.names == ["row", "embedding"]
        assert str(schema.field("embedding").type) == f"fixed_size_list<element: {element}>[5]"
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
