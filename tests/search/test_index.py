"""Index, and the rows of a .db and of a .npy: queries, conditions, and files that are changed or damaged."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.files.database import read_only
from fastflow.files.words import TABLE
from fastflow.search import Index
from fastflow.search.source import Database, Hit, MatrixSource, check_condition, refuse
from fastflow.transforms.vectors import cosine

from support.builders import make_model
from support.commands import run
from support.databases import make
from support.outputs import vectors_of
from support.refusals import refuses
from support.rows import data
from support.sentence_dirs import make_directory, pooling


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


@pytest.fixture(scope="module")
def made(model, corpus, tmp_path_factory):
    """``made(suffix, *options)``: the corpus embedded with ``model``."""
    folder = tmp_path_factory.mktemp("made")

    def get(suffix=".db", *options, of=model):
        path = folder / ("_".join(["x", *map(str, options), of.parent.name]).replace("/", "") + suffix)
        if not path.exists():
            done = run("embed", corpus, "-m", of, "-o", path, "--quiet", *options)
            assert done.exit_code == 0, done.stderr
        return path

    return get


@pytest.mark.parametrize("suffix", [".db", ".npy"])
def test_texts_and_vectors_find_the_same_rows(runtime, made, sentences, suffix):
    texts = ["the dog sleeps", *sentences[:2]]
    want = cosine(runtime.encode(texts).astype(np.float64), runtime.encode(sentences).astype(np.float64))
    with Index(made(suffix), runtime) as index:
        assert (index.dim, index.precision, index.similarity) == (32, "float32", "cosine")
        found = index.search(texts, 5)
        assert index.search(texts[0], 5) == found[0]
        assert index.search(runtime.encode(texts), 5) == found
        assert index.search(runtime.encode(texts[0]), 5) == found[0]
        assert index.search([]) == []
        assert len(index) == 256
        assert len(index.search(texts[0])) == 10
    for of_one, scores in zip(found, want, strict=True):
        assert [hit.row for hit in of_one] == np.argsort(-scores)[:5].tolist()
        assert np.allclose([hit.score for hit in of_one], np.sort(scores)[::-1][:5], atol=1e-6)
        assert [hit.text for hit in of_one] == [sentences[hit.row] if suffix == ".db" else None for hit in of_one]
    assert found[1][0].row == 0


@pytest.mark.parametrize("precision", ["float16", "int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("options", [(), ("--normalize",), ("--dim", 12), ("--dim", 32)])
def test_other_precisions_and_shortened_vectors(runtime, made, sentences, precision, options):
    with Index(made(".db", "--precision", precision, *options), runtime) as index:
        for at in (3, 77):
            hits = index.search(sentences[at], 256)
            assert at in [hit.row for hit in hits if hit.score == hits[0].score]  # few bits are equal for several texts
        best = index.search(sentences[3], 2)
    dim = options[1] if "--dim" in options else None
    queries = runtime.encode(sentences[:4], truncate_dim=dim).astype(np.float64)
    rows = runtime.encode(sentences, truncate_dim=dim, precision=precision)
    if precision in ("binary", "ubinary"):
        rows = (rows.astype(int) + 128 * (precision == "binary")).astype(np.uint8)
        signs = np.where(np.unpackbits(rows, axis=1, count=queries.shape[1]), 1.0, -1.0)
        assert np.isclose(best[1].score, np.sort(cosine(np.where(queries > 0, 1.0, -1.0), signs)[3])[-2])
    elif not options:
        rows = rows.astype(np.float64) - 128 * (precision == "uint8")
        assert np.isclose(best[1].score, np.sort(cosine(queries, rows)[3])[-2], atol=1e-6)


@pytest.fixture(scope="module")
def ordered(bert, sentences, tmp_path_factory):
    """A model that stores the order of its directions: it rotates what it shortens, even to its own width."""
    return make_model(tmp_path_factory.mktemp("ordered") / "flow", bert, sentences[:64], ordered=True)


@pytest.mark.parametrize(
    ("options", "normalize", "dim"),
    [((), False, None), (("--normalize",), True, None), (("--dim", 8), False, 8), (("--dim", 32), False, 32)],
)
def test_a_query_is_embedded_as_the_rows_were(made, ordered, sentences, options, normalize, dim):
    runtime = Runtime(ordered)
    assert not np.allclose(runtime.encode("dog"), runtime.encode("dog", truncate_dim=32))
    with Index(made(".db", *options, of=ordered), runtime) as index:
        assert index.query_options() == {"normalize_embeddings": normalize, "truncate_dim": dim}
        assert np.isclose(index.search(sentences[9], 1)[0].score, 1, atol=1e-6)
        query = runtime.encode_query("the dog sleeps", **index.query_options())
        assert index.search(query, 5) == index.search("the dog sleeps", 5)
    if dim != 32:  # a .npy does not say that it was shortened to the width of the model
        with Index(made(".npy", *options, of=ordered), runtime) as index:
            assert np.isclose(index.search(sentences[9], 1)[0].score, 1, atol=1e-6)


def test_texts_of_an_npy_and_conditions_that_choose_rows(runtime, made, corpus, sentences):
    with Index(made(".npy"), runtime, texts=corpus) as index:
        assert index.search(sentences[4], 1)[0].text == sentences[4]
    want = {i for i, text in enumerate(sentences) if i % 2 and "dog" in text.lower()}
    with Index(made(), runtime) as index:
        found = index.search(sentences[:2], 300, where="row % 2 = 1 AND text LIKE '%dog%'")
        assert [{hit.row for hit in of_one} for of_one in found] == [want, want]
        assert index.search("dog", where="0") == []


def test_another_model_is_refused(runtime, made, bert, model_copy):
    with pytest.raises(FastflowError) as caught:
        Index(made(), Runtime(bert))
    said = f"was made with another model, {runtime.fingerprint[:12]}…, and this is {bert}"
    assert said in str(caught.value)
    assert "give the model that made it" in str(caught.value)
    Index(made(), Runtime(model_copy)).close()  # the same files elsewhere are the same model


def test_prompt_and_similarity_of_a_sentence_transformers_model(bert, tmp_path, corpus, sentences):
    prompts = {"query": "the old ", "document": ""}
    directory = make_directory(tmp_path / "st", bert, [pooling("mean")], prompts=prompts, similarity_fn_name="dot")
    runtime = Runtime(directory)
    assert run("embed", corpus, "-m", directory, "-o", tmp_path / "x.db", "--quiet").exit_code == 0
    rows, query = runtime.encode(sentences), runtime.encode_query("dog")
    assert not np.array_equal(query, runtime.encode("dog"))
    with Index(tmp_path / "x.db", runtime) as index:
        assert index.similarity == "dot"
        found = index.search("dog", 5)
    assert [hit.row for hit in found] == np.argsort(-(rows @ query))[:5].tolist()
    assert np.allclose([hit.score for hit in found], np.sort(rows @ query)[::-1][:5], rtol=1e-5)
    with Index(tmp_path / "x.db") as index:  # without the model
        assert index.similarity == "cosine"
        assert index.query_options() == {"normalize_embeddings": False, "truncate_dim": None}


def test_what_does_not_fit_is_refused(runtime, made, bert, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 33), np.float32))
    far = Runtime(make_directory(tmp_path / "st", bert, [pooling("mean")], similarity_fn_name="euclidean"))
    whole = make(tmp_path / "x.db", np.zeros((3, 32), np.int8), {"precision": "int8"})
    for path, model, sentence in (
        (tmp_path / "x.npy", runtime, "x.npy has 33 dimensions, and …gives 32: give the model"),
        (whole, far, "holds int8, of which cosines can be computed, …compares by euclidean"),
        (np.zeros((3, 4), int), None, "the index: vectors are float16, float32, float64, and this holds 'int64'"),
        (made(), "default", "runtime must be a fastflow.Runtime, not str; give Runtime(MODEL)"),
    ):
        refuses(lambda path, model: Index(path, model), path, sentence, model=model)
    with Index(made()) as index:
        for query, k, sentence in (
            (np.zeros(3), 10, "has 32 dimensions, and the query 3"),
            ("a text", 10, "was opened without a model: search with vectors, or give runtime="),
            (np.full(32, np.nan), 10, "NaN"),
            (np.zeros(32), 0, "k must be a whole number of at least 1"),
        ):
            refuses(index.search, query, sentence, k=k)


VECTORS = vectors_of("float32", rows=20)


@pytest.fixture
def path(tmp_path):
    titles = [f"T{i}" for i in range(20)]
    return make(tmp_path / "x.db", VECTORS, {"fingerprint": "f", "normalized": True}, title=titles, id=list(range(20)))


def test_all_rows_in_blocks(path, monkeypatch):
    monkeypatch.setattr("fastflow.files.database.ROWS", 6)
    source = Database(path)
    assert (source.dim, source.precision, source.fingerprint, source.normalized) == (5, "float32", "f", True)
    rows, vectors = zip(*source.blocks(), strict=True)
    assert [len(each) for each in rows] == [6, 6, 6, 2]
    assert np.array_equal(np.concatenate(vectors), VECTORS)


def test_some_rows_in_the_order_asked_for(path, monkeypatch):
    monkeypatch.setattr("fastflow.files.database.ASKED", 2)
    source = Database(path)
    assert np.array_equal(source.vectors(np.array([7, 3, 19])), VECTORS[[7, 3, 19]])
    assert source.hits([(7, 0.5), (3, 0.25), (7, 0.0)]) == [
        Hit(7, 0.5, "text 7", 7, {"title": "T7"}), Hit(3, 0.25, "text 3", 3, {"title": "T3"}),
        Hit(7, 0.0, "text 7", 7, {"title": "T7"}),
    ]  # fmt: skip


def test_rows_of_a_condition(path):
    source = Database(path)
    assert source.numbers("title IN ('T4', 'T2') OR row > 17").tolist() == [2, 4, 18, 19]
    ((rows, vectors),) = source.blocks("id = 5")
    assert (rows.tolist(), vectors.tolist()) == ([5], VECTORS[5:6].tolist())
    assert list(source.blocks("0")) == []
    assert source.numbers("row < 3 -- a comment").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        # refused before SQLite sees them
        ("1) UNION SELECT 1, 2 WHERE (1", "its parentheses do not match"),
        ("row in (1", "its parentheses do not match"),
        ("  ", "it is empty"),
        ('title = "en"', "no column is called 'en' (a text needs single quotes)"),
        # SQLite's words, without those on our parenthesis
        ("titel = 1", "no such column: titel (a text needs single quotes); the columns are"),
        ('title = "x', "a quote is not closed"),
        ("row IN (SELECT name FROM run)", "run"),
        ("1; DELETE FROM texts", 'near ";"'),
        ("row = ?", "bindings"),
        ("row = :a", "bind"),
        ("count(*) > 1", "misuse of aggregate"),
        ("row = 'a\0b'", "null character"),
        ("json(text) = 1", "JSON"),
        ("row >", "the condition 'row >' cannot be used: it ends too soon"),
        ("row > abs()", "the condition 'row > abs()' cannot be used: wrong number of arguments"),
    ],
)
def test_conditions_that_cannot_be_used(path, where, why):
    before = path.read_bytes()
    for read in (lambda: list(Database(path).blocks(where)), lambda: Database(path).numbers(where)):
        with pytest.raises(UsageError) as caught:
            read()
        assert why in str(caught.value)
        assert str(caught.value).endswith("; the columns are row, text, title, id")
    assert path.read_bytes() == before


def test_what_was_changed_or_damaged_is_named(path):
    source, whole = Database(path), path.read_bytes()
    make(path, VECTORS[:19])
    refuses(lambda source: list(source.blocks()), source, "x.db was changed since it was opened")
    path.unlink()
    refuses(source.numbers, "1", "x.db cannot be read: No such file")
    path.write_bytes(whole[:-8000] + b"\xff" * 8000)
    refuses(lambda path: list(Database(path).blocks()), path, "x.db ")
    for column, value, why in (
        ("vector", b"\0", "its vector is not 5 numbers"),
        ("vector", np.full(5, np.nan, "<f4").tobytes(), "its vector holds NaN or infinity; make it again"),
        ("id", b"\0\xff", "its id is bytes"),
    ):
        path.write_bytes(whole)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(f"UPDATE texts SET {column} = ? WHERE row = 4", [value])
        source = Database(path)
        if column == "id":
            assert [hit.id for hit in source.hits([(0, 1.0), (2, 0.5)])] == [0, 2]
            refuses(source.hits, [(0, 1.0), (4, 0.5)], f"row 4: {why}")
        else:
            refuses(lambda source: list(source.blocks()), source, f"x.db is damaged: row 4: {why}")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_condition_without_end_hears_signals(path, number, code):
    joins = ", ".join(f"texts t{i}" for i in range(9))
    script = (
        "import sys, click\nfrom pathlib import Path\nfrom fastflow.console import Commands\n"
        "from fastflow.search.source import Database\n"
        "@click.group(cls=Commands)\ndef main(): pass\n"
        "@main.command()\ndef go():\n    source = Database(Path(sys.argv[2]))\n    print('ready', flush=True)\n"
        "    source.numbers(sys.argv[3])\nmain(['go'])\n"
    )
    command = [sys.executable, "-c", script, "go", str(path), f"(SELECT count(*) FROM {joins}) > 0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # the statement runs
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (code, f"fastflow: {'interrupted' if code == 130 else 'terminated'}\n")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM texts", "UPDATE texts SET row = 1", "INSERT INTO texts VALUES (1)", "DROP TABLE texts",
        "ATTACH 'x.db' AS x", "CREATE TABLE x (a)", "PRAGMA query_only = off", "SELECT * FROM run",
        "SELECT * FROM sqlite_master", "SELECT load_extension('x')", "VACUUM INTO 'x.db'", "BEGIN",
        "SELECT * FROM pragma_table_info('texts')",
    ],
)  # fmt: skip
def test_only_the_table_can_be_read(tmp_path, monkeypatch, sql):
    monkeypatch.chdir(tmp_path)
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE texts (row)")
    db.execute("CREATE TABLE run (a)")
    read_only(db, TABLE)
    assert db.execute("SELECT count(*) FROM texts WHERE row IN (SELECT lower(row) FROM texts)").fetchone() == (0,)
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited|authorization denied"):
        db.execute(sql)
    assert list(tmp_path.iterdir()) == []
    db.close()


def test_one_condition_and_its_refusal():
    for where in (
        "row < 3", "(row) or (row)", "text = ')'", "text = 'it''s (' -- )", '"od""d" = 1', '"lang" = 1', "/* ( */ 1",
    ):  # fmt: skip
        assert check_condition(where, ["row", "text", 'od"d', "Lang"]) == f"(\n{where}\n)"
    for where, why in {"'de": "a quote is not closed", "#": "unrecognized token: "}.items():
        with pytest.raises(sqlite3.DatabaseError) as error:  # the end that is put after a condition is not quoted
            sqlite3.connect(":memory:").execute(f"SELECT 1 WHERE {check_condition(where, [])}")
        assert f"cannot be used: {why}" in str(refuse(where, error.value, []))
    for count, end in ((20, "18, 19"), (21, "18, 19, …"), (30, "18, 19, …")):
        assert str(refuse("x", "why", [str(n) for n in range(count)])).endswith(end)


def test_a_npy_and_the_texts_of_its_input(tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.search.source.NPY_ROWS", 4)
    path, texts = tmp_path / "x.npy", tmp_path / "x.txt"
    np.save(path, data(10))
    texts.write_text("".join(f"line {i}\n" for i in range(10)))
    with closing(MatrixSource(path)) as source:
        assert (source.dim, source.precision, source.fingerprint) == (16, "float32", None)
        rows, vectors = zip(*source.blocks(), strict=True)
        assert [each.tolist() for each in rows] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert np.array_equal(np.concatenate(vectors), data(10).astype(np.float32))
        assert np.array_equal(source.vectors(np.array([7, 2])), data(10)[[7, 2]].astype(np.float32))
        assert source.hits([(7, 0.5)]) == [Hit(7, 0.5)]
        for read in (lambda where: list(source.blocks(where)), source.numbers):
            refuses(read, "1", "x.npy has no columns, so no condition can choose its rows")
    with closing(MatrixSource(path, texts)) as source:
        assert source.hits([(7, 0.5), (0, 0.1)]) == [Hit(7, 0.5, "line 7"), Hit(0, 0.1, "line 0")]
        for lines in (9, 11):
            texts.write_text("one\n" * lines)
            refuses(source.hits, [(7, 0.5)], f"x.txt has {lines} texts, and …x.npy has 10 vectors")
