"""Embeddings in a SQLite database: columns, types, the run, names that clash, and a file that cannot be written."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest

from fastflow import Runtime, __version__
from fastflow.errors import FastflowError
from fastflow.files.write.database import DatabaseFile, stored
from fastflow.files.write.printing import Block

from support.commands import run
from support.databases import make, read, vectors_in
from support.outputs import META, block, vectors_of


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
        writer.write(Block([5, 6], ["t\0t", "ü"], [7, "k"], vectors_of("float32", rows=2), np.zeros(2), kept))
        writer.finish()
    first, second = read(tmp_path / "x.db")[0]
    assert [first[name] for name in ("row", "text", "id", *kept)] == [
        5, "t\0t", 7, "a", 1, 0.5, 1, 1, "9223372036854775808"
    ]  # fmt: skip
    assert [second[name] for name in kept] == [None, 2, -1.0, "one", '{"b": "ü"}', -(2**63)]
    assert declared(tmp_path / "x.db") == {
        "row": "INTEGER", "text": "TEXT", "id": "", "title": "TEXT", "n": "INTEGER", "x": "REAL", "mixed": "",
        'odd "name"; --': "", "large": "", "log_prob": "REAL", "vector": "BLOB",
    }  # fmt: skip


def test_text_that_looks_like_a_number_stays_text_and_compares_as_text(tmp_path):
    path = make(tmp_path / "x.db", vectors_of("float32", rows=4), {}, year=["1999", "2001", "007", "2005"])
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT year FROM texts").fetchall() == [("1999",), ("2001",), ("007",), ("2005",)]
        assert db.execute("SELECT count(*) FROM texts WHERE year > 2000").fetchone() == (2,)


def test_values_of_json():
    assert [stored(v) for v in (True, None, 2, 2.0, "a", [1], float("nan"), 2**70)] == [
        1, None, 2, 2.0, "a", "[1]", None, str(2**70),
    ]  # fmt: skip
    assert type(stored(True)) is int


def test_the_run_is_described(model, corpus, tmp_path, sentences):
    target, runtime = tmp_path / "x.db", Runtime(model)
    options = ["--normalize", "--dim", "12", "--precision", "ubinary", "--prompt", "so "]
    assert run("embed", corpus, "-m", model, "-o", target, "--quiet", *options).exit_code == 0
    _, about = read(target)
    assert about == {
        "fingerprint": runtime.fingerprint, "backend": runtime.backend, "dtype": str(runtime.info()["dtype"]),
        "precision": "ubinary", "normalized": 1, "dim": 12, "truncate_dim": 12, "prompt": "so ", "format": 1,
        "version": __version__, "id_field": None, "model": str(model),
    }  # fmt: skip
    want = runtime.encode(sentences, None, True, truncate_dim=12, precision="ubinary", prompt="so ")
    assert np.array_equal(vectors_in(target), want)


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
