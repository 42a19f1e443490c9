"""Parquet in and a folder out, without a cluster: parts, row numbers, refusals, and a folder that is whole or not."""

from __future__ import annotations

import json
import socket

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from fastflow import FastflowError
from fastflow.errors import UsageError
from fastflow.files.read.records import Layout
from fastflow.integrations import ray_files
from fastflow.integrations.ray import job_of
from fastflow.integrations.ray_cluster import cluster
from fastflow.integrations.ray_files import (
    MANIFEST,
    TEXT,
    Output,
    RowEmbedder,
    embed_parquet,
    files_of,
    parts_of,
    read_part,
)

from support.corpus import regressions
from support.refusals import refuses


@pytest.fixture
def folder(tmp_path):
    """a.parquet of five rows in groups of two, below/b.parquet of three with a dictionary, and a file that is none."""
    (tmp_path / "below").mkdir()
    texts = pa.array(["t0", "t1", "t2", "t3", "t4"])
    pq.write_table(pa.table({"key": range(5), "text": texts}), tmp_path / "a.parquet", row_group_size=2)
    others = pa.array(["t5", "t6", "t5"]).dictionary_encode()
    pq.write_table(pa.table({"key": range(5, 8), "text": others}), tmp_path / "below" / "b.parquet")
    (tmp_path / "_manifest.parquet").write_text("no table")
    return tmp_path


def rows_of(parts, columns):
    return pa.concat_tables([table for part in parts for table in read_part(part, columns)]).to_pylist()


@pytest.mark.parametrize("size", [1, 3, 65_536])
def test_rows_are_numbered_through_all_inputs_however_they_are_cut(folder, monkeypatch, size):
    monkeypatch.setattr(ray_files, "PART", size)
    parts, columns = parts_of([str(folder)], Layout(id_field="key", keep=("text",)))
    assert len(parts) == {1: 4, 3: 3, 65_536: 2}[size]
    want = [{"row": i, "key": i, "text": f"t{i}", TEXT: f"t{i}"} for i in range(8)]
    want[7] |= {"text": "t5", TEXT: "t5"}
    assert rows_of(parts, columns) == want


def test_a_url_is_a_file_system_of_pyarrow(folder):
    plain, _ = parts_of([str(folder)], Layout())
    found, columns = parts_of([f"file://{folder}"], Layout())
    assert [part.rows for part in found] == [part.rows for part in plain]
    assert [row[TEXT] for row in rows_of(found, columns)][:2] == ["t0", "t1"]


def test_the_output_has_numbers_and_vectors_and_no_texts(folder, model):
    parts, columns = parts_of([str(folder)], Layout())
    job = job_of(model, "auto", TEXT, "embedding", {"precision": "int8", "normalize_embeddings": True}, 1)
    out = RowEmbedder(job)(pa.concat_tables(list(read_part(parts[0], columns))))
    assert out.schema.names == ["row", "embedding"]
    meta = json.loads(out.schema.metadata[b"fastflow"])
    assert (meta["precision"], meta["normalized"]) == ("int8", True)
    assert meta["fingerprint"] == job.numbers["fingerprint"]


@pytest.mark.parametrize(
    ("columns", "layout", "sentence"),
    [
        ({"text": [1]}, {}, "in.parquet: the column 'text' is int64, not text"),
        ({"text": ["a"]}, {"field": "body"}, "in.parquet: no field 'body'; the fields are text"),
        ({"sentence1": ["a"], "sentence2": ["b"]}, {}, "in.parquet holds pairs of texts; choose one with --te"),
        ({"text": ["a"], "row": [1]}, {"keep": ("row",)}, "has a column 'row' of its own; rename yours"),
        ({"text": ["a"], "row": [1]}, {"id_field": "row"}, "has a column 'row' of its own; rename yours, or leave"),
        ({"text": pa.array([], pa.string())}, {}, "in.parquet: there is no row to embed"),
    ],
)
def test_inputs_that_are_refused_before_a_cluster_computes(tmp_path, columns, layout, sentence):
    pq.write_table(pa.table(columns), tmp_path / "in.parquet", row_group_size=2)
    refuses(parts_of, [str(tmp_path / "in.parquet")], sentence, layout=Layout(**layout))


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "no.parquet").write_text("no table")
    for path, sentence in (
        (tmp_path / "no.parquet", "no.parquet cannot be read as Parquet: "),
        (tmp_path / "absent.parquet", "absent.parquet: no such file or folder"),
        ("nowhere://bucket/file", "nowhere://bucket/file cannot be opened: "),
    ):
        refuses(parts_of, [str(path)], sentence, layout=Layout())
    (tmp_path / "empty").mkdir()
    refuses(files_of, str(tmp_path / "empty"), "empty holds no .parquet file")


def test_columns_that_differ_between_inputs_are_refused(tmp_path):
    for name, column, key in (("a", "text", 1), ("b", "text", "1"), ("c", "sentence", 1)):
        pq.write_table(pa.table({column: ["a"], "key": [key]}), tmp_path / f"{name}.parquet")
    a, b, c = (str(tmp_path / f"{name}.parquet") for name in "abc")
    typed = Layout(keep=("key",))
    refuses(parts_of, [a, b], "b.parquet: the column 'key' is string, and int64 in an input before", layout=typed)
    refuses(parts_of, [a, c], "c.parquet: its texts are in 'sentence', in 'text' of an input before", layout=Layout())


def test_a_file_that_changes_before_its_node_reads_it_is_an_error(folder):
    parts, columns = parts_of([str(folder / "a.parquet")], Layout())
    pq.write_table(pa.table({"key": range(5), "text": list("abcde")}), folder / "a.parquet", row_group_size=2)
    with pytest.raises(FastflowError, match=r"a\.parquet was changed while it was read; start again"):
        rows_of(parts, columns)


def test_a_null_is_found_where_it_is_read(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b", "c", "d", None]}), tmp_path / "in.parquet", row_group_size=2)
    parts, columns = parts_of([str(tmp_path / "in.parquet")], Layout())
    with pytest.raises(FastflowError, match=r"row 4: field 'text' is null, not a text; fill it or remove the row$"):
        rows_of(parts, columns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("the name of a column is not UTF-8", '["a","dog",""]'),
        ("pyarrow ends the process if the description of a column is asked for", "cannot be read as Parquet: "),
        ("the footer counts other rows than the groups", "is damaged: its footer counts -4 rows, and its groups 3"),
        ("a group has fewer texts than rows", "is damaged: 3 rows were to be read, and 0 are there"),
    ],
)
def test_a_damaged_file_is_a_sentence_and_no_end_of_the_process(tmp_path, run_python, fault, sentence):
    (tmp_path / "in.parquet").write_bytes(regressions("parquet")[fault][1:])
    done = run_python(
        "import sys\n"
        "from fastflow.errors import FastflowError\n"
        "from fastflow.files.read.records import Layout\n"
        "from fastflow.integrations.ray_files import parts_of, read_part\n"
        "try:\n"
        "    parts, columns = parts_of([sys.argv[1]], Layout())\n"
        "    print([list(read_part(part, columns)) for part in parts])\n"
        "except FastflowError as error:\n"
        "    print(error)\n",
        tmp_path / "in.parquet",
    )
    assert done.returncode == 0, done.stderr
    assert sentence in done.stdout


def test_a_cluster_that_does_not_answer_leaves_nothing(folder, model, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"  # bound and not listening: it refuses
        monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray tries a closed port for minutes"))
        with pytest.raises(FastflowError, match=f"^--ray {address}: no cluster of Ray answers there: .*refused"):
            embed_parquet([str(folder)], str(out), Layout(), str(model), {}, "auto", 1, cluster(address, True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_manifest.parquet", "a.parquet", "below"]


def test_the_dimensions_are_refused_by_the_name_of_the_option(folder, tmp_path, model):
    given = str(tmp_path / "out"), Layout(), str(model), {"truncate_dim": 999}, "auto", 1, cluster("local", True)
    with pytest.raises(UsageError, match=r"^--dim must be 1 to 32"):
        embed_parquet([str(folder)], *given)


def write(folder, name, rows):
    pq.write_table(pa.table({"row": range(rows)}), folder / name)


def test_a_folder_gets_its_name_when_it_is_whole(tmp_path):
    out = Output(str(tmp_path / "out"))
    out.begin({"run": 1})
    working = tmp_path / "out.partial"
    assert out.working == str(working)
    write(working, "a.parquet", 3)
    with pytest.raises(FastflowError, match=r"out\.partial holds 3 rows, and the inputs 5: it is not whole"):
        out.finish({"run": 1}, 5)
    assert not (tmp_path / "out").exists()
    write(working, "b.parquet", 2)
    out.finish({"run": 1}, 5)
    assert json.loads((tmp_path / "out" / MANIFEST).read_text()) == {"run": 1, "rows": 5}
    assert pq.read_table(tmp_path / "out").num_rows == 5, "readers pass over the manifest"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(FastflowError, match="out exists and is not empty"):
        Output(str(tmp_path / "out"))


def test_an_unfinished_run_is_replaced_and_other_folders_are_not(tmp_path):
    Output(str(tmp_path / "out")).begin({})
    write(tmp_path / "out.partial", "old.parquet", 3)
    Output(str(tmp_path / "out")).begin({})
    assert [path.name for path in (tmp_path / "out.partial").iterdir()] == [MANIFEST]
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / "mine.partial" / "diary.txt").write_text("dear")
    with pytest.raises(FastflowError, match=r"mine\.partial exists and is no unfinished run of this command"):
        Output(str(tmp_path / "mine")).begin({})


def test_a_store_that_cannot_rename_has_a_manifest_without_rows_until_the_end(tmp_path, monkeypatch):
    store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(ray_files, "filesystem", lambda path: (store, path.removeprefix("s3://")))
    out = Output("s3://bucket/out")
    assert out.working == "s3://bucket/out"
    out.begin({})
    place = tmp_path / "bucket" / "out"
    assert json.loads((place / MANIFEST).read_text()) == {"rows": None}
    write(place, "a.parquet", 3)
    out.finish({}, 3)
    assert json.loads((place / MANIFEST).read_text()) == {"rows": 3}


@pytest.mark.parametrize("name", ["out.parquet", "out.npy", "s3://bucket/out.parquet/"])
def test_the_name_of_a_file_is_refused(name, monkeypatch):
    monkeypatch.setattr(ray_files, "filesystem", lambda path: (fs.LocalFileSystem(), path))
    with pytest.raises(UsageError, match=r"--ray writes a folder of Parquet files, and .* names a file: -o FOLDER"):
        Output(name)
