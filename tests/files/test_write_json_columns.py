"""JSON values in Parquet: a column has the type that holds all of its values, however the run was cut."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow.files.parts import merging
from fastflow.files.parts.manifest import manifest_path, read_manifest
from fastflow.files.write import parquet_output
from fastflow.files.write.json_columns import as_text, cast, joined, look, marked, typed

from support.commands import assert_one_sentence, run
from support.runs import check_parts

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
    rows = [
        {"text": text, "id": i, "n": i if i < 30 else i + 0.5, "mixed": i if i < 30 else "?", "year": 1990 + i}
        for i, text in enumerate(sentences[:40])
    ]
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


@pytest.mark.slow
@pytest.mark.parametrize("of", [2, 4, 50])
def test_parts_are_text_and_joined_to_the_columns_of_one_run(model, desk, monkeypatch, of):
    """The last part alone has seen that a column is mixed."""
    monkeypatch.setattr(merging, "ROWS", 4)
    monkeypatch.setattr(parquet_output, "GROUP", 16)
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
    read_manifest(manifest_path(part)).sealed(part).write(part)
    result = run("merge", "parts", "-o", "out.parquet")
    assert_one_sentence(result, 1, "parts/2.parquet has other columns than parts/1.parquet; make the parts again")


def test_fields_of_a_table_are_text(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("text,n\nhello,1\n")
    run("embed", "in.csv", "-m", model, "--quiet", "--keep", "n", "-o", "out.parquet")
    assert types_of("out.parquet") == {"n": "string"}
