"""JSON values in Parquet: a column has the type that holds all of its values, however the run was cut."""

from __future__ import annotations

import json
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow import Runtime
from fastflow.files import embed as module
from fastflow.files.embed import embed_file
from fastflow.files.parts import merging
from fastflow.files.parts.manifest import manifest_path, read_manifest
from fastflow.files.read.records import Layout
from fastflow.files.run import Run
from fastflow.files.settings import Settings
from fastflow.files.write import parquet_output
from fastflow.files.write.json_columns import as_text, cast, joined, look, marked, typed
from fastflow.files.write.partial import State

from support.commands import assert_one_sentence, run

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
}


def column(values):
    kinds, batch = {}, pa.record_batch({"x": pa.array(as_text(values), pa.string())})
    for value in values:
        look(kinds, "x", [value])
    return cast(batch, typed(batch.schema, kinds))["x"]


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


def test_no_value_at_all():
    assert str(column([]).type) == "string"


def test_schemas_of_parts():
    schema = pa.schema([("x", pa.string()), ("y", pa.string()), ("z", pa.int8())], metadata={"fastflow": "{}"})
    parts = [marked(schema, {"x": {"int"}, "y": set()}), marked(schema, {"x": {"float"}, "y": {"bool"}})]
    found = joined(parts)
    assert found.equals(pa.schema([("x", pa.float64()), ("y", pa.bool_()), ("z", pa.int8())], {"fastflow": "{}"}), True)
    assert joined([*parts, schema]) is None  # of a part whose columns carry nothing
    assert joined([parts[0], parts[1].remove_metadata()]) is None
    assert joined([schema, schema]).equals(schema, check_metadata=True)


@pytest.fixture
def desk(tmp_path, monkeypatch, sentences):
    """40 rows: whole numbers at first, then others."""
    monkeypatch.chdir(tmp_path)
    late = {
        "n": lambda i: i if i < 30 else i + 0.5,
        "mixed": lambda i: i if i < 30 else "?",
        "year": lambda i: 1990 + i,
    }
    rows = [{"text": text, "id": i} | {name: f(i) for name, f in late.items()} for i, text in enumerate(sentences[:40])]
    del rows[7]["year"], rows[7]["n"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


OPTIONS = ("--keep", "n,mixed,year", "--id-field", "id")
TYPES = {"id": "int64", "n": "double", "mixed": "string", "year": "int64"}


def types_of(path):
    return {f.name: str(f.type) for f in pq.read_schema(path) if f.name != "embedding"}


def test_a_run_writes_numbers_as_numbers(model, desk):
    result = run("embed", "in.jsonl", "-m", model, "--quiet", *OPTIONS, "-o", "out.parquet")
    assert result.exit_code == 0, result.stderr
    table = pq.read_table("out.parquet")
    assert types_of("out.parquet") == TYPES
    assert table["year"].to_pylist() == [row.get("year") for row in desk]
    assert table["n"].to_pylist() == [row.get("n") for row in desk]
    assert table["mixed"].to_pylist() == [str(row["mixed"]) for row in desk]
    assert table["id"].to_pylist() == list(range(40))


def test_the_database_stays_as_it_is(model, desk):
    run("embed", "in.jsonl", "-m", model, "--quiet", *OPTIONS, "-o", "out.db")
    with sqlite3.connect("out.db") as db:
        assert db.execute("SELECT id, n, mixed, year FROM texts WHERE row IN (7, 39)").fetchall() == [
            (7, None, 7, None),
            (39, 39.5, "?", 2029),
        ]


def test_values_that_an_interrupted_run_wrote_count_too(model, desk, tmp_path, monkeypatch):
    """The resumed run reads whole numbers alone if the first had seen others: the type must not depend on it."""
    monkeypatch.setattr(module, "WINDOW", 16)
    lines = (tmp_path / "in.jsonl").read_text().splitlines()[::-1]
    (tmp_path / "in.jsonl").write_text("".join(line + "\n" for line in lines))
    target = tmp_path / "out.parquet"
    settings = Settings(Layout(keep=("n", "mixed", "year"), id_field="id"))
    embed_file(Runtime(model), ["in.jsonl"], target, settings, Run(quiet=True))
    whole = target.read_bytes()
    target.unlink()
    with monkeypatch.context() as patch:
        saved = State.save
        patch.setattr(State, "save", lambda self, *args: (saved(self, *args), (_ for _ in ()).throw(KeyError())))
        with pytest.raises(KeyError):
            embed_file(Runtime(model), ["in.jsonl"], target, settings, Run(quiet=True))
    assert embed_file(Runtime(model), ["in.jsonl"], target, settings, Run(resume=True, quiet=True)).resumed == 16
    assert types_of(target) == TYPES
    assert target.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.parametrize("of", [2, 4, 50])
def test_parts_are_text_and_joined_to_the_columns_of_one_run(model, desk, tmp_path, monkeypatch, of):
    """The last part alone has seen that a column is mixed."""
    monkeypatch.setattr(merging, "ROWS", 4)
    monkeypatch.setattr(parquet_output, "GROUP", 16)
    run("embed", "in.jsonl", "-m", model, "--quiet", *OPTIONS, "-o", "whole.parquet")
    for number in range(1, of + 1):
        part = f"parts/{number}.parquet"
        run("embed", "in.jsonl", "-m", model, "--quiet", *OPTIONS, "--shard", f"{number}/{of}", "-o", part)
        assert set(types_of(part).values()) == {"string"}
    assert pq.read_table(tmp_path / "parts" / f"{of}.parquet")["year"][0].as_py().startswith("20")
    result = run("merge", "parts", "-o", "out.parquet")
    assert result.exit_code == 0, result.stderr
    assert types_of("out.parquet") == TYPES
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_a_part_that_carries_no_kinds_is_named(model, desk, tmp_path):
    for number in (1, 2):
        part = tmp_path / "parts" / f"{number}.parquet"
        run(
            "embed",
            "in.jsonl",
            "-m",
            model,
            "--quiet",
            *OPTIONS,
            "--shard",
            f"{number}/2",
            "-o",
            f"parts/{number}.parquet",
        )
    table = pq.read_table(part)
    bare = pa.schema([field.remove_metadata() for field in table.schema], table.schema.metadata)
    pq.write_table(table.cast(bare), part)
    read_manifest(manifest_path(part)).sealed(part).write(part)
    result = run("merge", "parts", "-o", "out.parquet")
    assert_one_sentence(result, 1, "parts/2.parquet has other columns than parts/1.parquet; make the parts again")


def test_a_parquet_input_keeps_its_types(model, desk, tmp_path):
    table = pa.table(
        {"text": ["a", "b"], "n": pa.array([1, 2], pa.int16()), "s": ["1", "2"], "d": pa.array([0, 1], pa.date32())}
    )
    pq.write_table(table, tmp_path / "in.parquet")
    result = run("embed", "in.parquet", "-m", model, "--quiet", "--keep", "n,s,d", "-o", "out.parquet")
    assert result.exit_code == 0, result.stderr
    assert types_of("out.parquet") == {"n": "int16", "s": "string", "d": "date32[day]"}


def test_fields_of_a_table_are_text(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("text,n\nhello,1\n")
    run("embed", "in.csv", "-m", model, "--quiet", "--keep", "n", "-o", "out.parquet")
    assert types_of("out.parquet") == {"n": "string"}
