"""Word search in a .db, searches by words and vectors, hits of equal texts, and conditions without SQL."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.commands import search as search_command
from fastflow.errors import FastflowError, UsageError
from fastflow.files import database
from fastflow.files.words import COMMON, MADE, TOKENIZERS, WORDS, find_words, quote_query
from fastflow.model.locate import PACKAGED
from fastflow.search import Index, scan, to_pandas
from fastflow.search.scan import SHARES, fuse
from fastflow.search.source import Database, compile_condition

from support.commands import run

TEXTS = [
    "The ship sailed into the storm.", "A baker sells bread at the market.", "What is the budget, roughly?",
    "Ships are sailing in storms.", "A multi-agent system plans at 5 GB/s.", "The ship sailed into the storm.",
    "Write C# for release v1.1.6 and close #682.", "Read $prev and grammar::fa.",
    "The storm is over and they are home.",
]  # fmt: skip
FIELDS = [{"lang": "en", "year": 2000 + i, "note": None if i else "x"} for i in range(len(TEXTS))]
ODD = (
    "what's the budget, roughly?", "multi-agent", "GB/s", "C#", "v1.1.6", "#682", "$prev", "grammar::fa", "---", "",
    '"', 'a"b OR (', "NEAR(a b)", "text : x", "^x", "*", "\0", "a\ud800b", "the of and", "x" * 100_000, "a " * 50_000,
)  # fmt: skip
FOUND = {"what's the budget, roughly?": 2, "multi-agent": 4, "GB/s": 4, "v1.1.6": 6, "#682": 6, "$prev": 7,
         "grammar::fa": 7}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    rows = [{"id": i, "text": text, **more} for i, (text, more) in enumerate(zip(TEXTS, FIELDS, strict=True))]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def embed(folder, name, *options, model="static"):
    source = [folder / "in.jsonl", "--id-field", "id", "--keep", "lang,year,note", "-m", model, "--quiet"]
    done = run("embed", *source, "-o", folder / name, *options)
    assert done.exit_code == 0, done.stderr
    return folder / name


@pytest.fixture(scope="module")
def path(folder):
    return embed(folder, "x.db")


@pytest.fixture(scope="module")
def index(path):
    with Index(path, Runtime("static", backend="cpu")) as index:
        yield index


def rows_of(hits):
    return [hit.row for hit in hits]


def check_in_step(path):
    """The words are those of the texts: SQLite compares them, and a rebuilt table finds the same."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"INSERT INTO {WORDS}({WORDS}, rank) VALUES ('integrity-check', 1)")
        found = [find_words(db, quote_query(text, "porter"), 9) for text in TEXTS]
        db.execute(f"INSERT INTO {WORDS}({WORDS}) VALUES ('rebuild')")
        assert [find_words(db, quote_query(text, "porter"), 9) for text in TEXTS] == found


def test_append_replace_and_delete_keep_the_words_in_step(folder, path):
    check_in_step(path)
    grown = embed(folder, "grown.db", "--append")
    with Index(grown, Runtime("static", backend="cpu")) as index:
        fields = {"lang": ["de", "en"], "year": [1, 2], "note": [None, None]}
        assert index.add(["Ein Schiff im Sturm.", "A harbour pilot."], [0, 99], fields)["replaced"] == 1
        assert index.delete([3, 4]) == 2
        assert rows_of(index.search("ship", by="words")) == [5]
        assert rows_of(index.search("harbour", by="words", k=1)) == [9]
    check_in_step(grown)
    with closing(sqlite3.connect(grown)) as db, db:  # as another program would
        db.execute("UPDATE texts SET text = 'A lighthouse.' WHERE row = 1")
    check_in_step(grown)


def test_a_database_of_another_program_gets_words_beside_its_views(folder):
    with closing(sqlite3.connect(folder / "own.db")) as db, db:
        db.execute("CREATE TABLE orders (id INTEGER)")
        db.execute("CREATE VIEW latest AS SELECT max(id) FROM orders")
    for _ in range(2):
        own = embed(folder, "own.db", "--append")
    with Index(own, Runtime("static", backend="cpu")) as index:
        assert index.add(["Another harbour."], [50], {name: [None] for name in FIELDS[0]})["added"] == 1
        assert rows_of(index.search("harbour", by="words")) == [9]
    check_in_step(own)


def test_a_file_without_words_is_searched_by_vectors(folder):
    bare = embed(folder, "bare.db", "--no-words")
    assert database.find_foreign(bare) is None
    with Index(bare, Runtime("static", backend="cpu")) as index:
        assert not index.has_words
        assert index.search("a ship")[0].words is None
        with pytest.raises(UsageError, match="has no word search"):
            index.search("a ship", by="both")
    said = run("search", bare, "a ship").stderr
    assert "ranked by vectors: the score is the cosine; the file has no word search" in said


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_query_is_an_error_and_none_loses_its_words(path, kind):
    draw = random.Random(5)
    letters = "\"*^:(){}[]+-~'` \0\n,.é中aZ1\ud800ANDORNOTNEAR"
    hostile = ["".join(draw.choices(letters, k=draw.randrange(30))) for _ in range(1000)]
    with database.reading(path) as db:
        database.read_only(db, database.TABLE, WORDS)
        for query in (*ODD, *hostile):
            find_words(db, quote_query(query, kind), 3)
        for query, row in FOUND.items() if kind == "porter" else ():
            assert find_words(db, quote_query(query, kind), 1)[0][0] == row, query


def test_a_query_without_stop_words():
    assert quote_query("What is the budget of a ship?", "porter") == '"budget" OR "ship?"'
    assert quote_query("what is the", "porter") == '"what" OR "is" OR "the"'
    assert quote_query("what is", "words") == '"what" OR "is"'
    assert quote_query("北京大学 ab", "trigram") == '"北京大" OR "京大学" OR "ab"'
    assert len(COMMON.split()) == 65


@pytest.mark.each
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The dog and the cat are in the house, and this is what they have.", "porter"),
        ("Der Hund und die Katze sind in dem Haus, und das ist nicht gut für uns.", "words"),
        ("今天天气很好我们去公园散步吧然后去看一场电影", "trigram"),
        ("", "words"),
    ],
)
def test_the_language_chooses_the_tokenizer(tmp_path, text, kind):
    (tmp_path / "in.txt").write_text(f"{text}\n" * 3)
    assert run("embed", tmp_path / "in.txt", "-m", "multilingual", "-o", tmp_path / "x.db", "--quiet").exit_code == 0
    assert Database(tmp_path / "x.db").words == kind
    assert set(MADE.values()) == set(TOKENIZERS)


def test_fusion_by_hand():
    vectors, words = [(4, 0.9), (1, 0.5), (2, 0.1)], [(2, 8.0), (7, 4.0)]
    want = {4: 0.6 * 1.0, 1: 0.6 * 0.5, 2: 0.6 * 0.0 + 0.4 * 1.0, 7: 0.4 * 0.0}
    assert fuse(vectors, words, 0.4) == [(4, pytest.approx(want[4])), (2, 0.4), (1, pytest.approx(want[1])), (7, 0.0)]
    assert fuse([], [(3, 1.0)], 0.4) == [(3, 0.4)]
    assert fuse([(5, 0.2), (3, 0.2)], [], 0.5) == [(3, 0.5), (5, 0.5)]


def test_both_is_the_sum_of_its_parts(index):
    text = "a ship in a storm"
    near = index.search(text, 9, by="vectors", distinct=False)
    words = index.search(text, 9, by="words", distinct=False)
    fused = fuse([hit[:2] for hit in near], [hit[:2] for hit in words], SHARES["table"])
    found = index.search(text, 9, distinct=False)
    assert [hit[:2] for hit in found] == fused
    for hit in found:
        assert hit.similarity == {each.row: each.score for each in near}.get(hit.row)
        assert hit.words == {each.row: each.score for each in words}.get(hit.row)


@pytest.mark.parametrize("by", ["auto", "vectors", "words"])
def test_equal_texts_are_one_hit_with_their_rows(index, by):
    found = index.search("The ship sailed into the storm.", 2, by=by)
    assert [hit.rows for hit in found if hit.row == 0] == [(0, 5)]
    assert len({hit.text for hit in found}) == len(found) == 2
    every = index.search("The ship sailed into the storm.", 3, by=by, distinct=False)
    assert {0, 5} < set(rows_of(every))


def test_many_equal_rows_leave_room_for_others(tmp_path):
    (tmp_path / "in.txt").write_text("A ship.\n" * 500 + "A boat.\nBread.\n")
    assert run("embed", tmp_path / "in.txt", "-m", "static", "-o", tmp_path / "x.db", "--quiet").exit_code == 0
    with Index(tmp_path / "x.db", Runtime("static", backend="cpu")) as index:
        for by in ("vectors", "both"):
            found = index.search("a ship", 2, by=by)
            assert [(hit.row, len(hit.rows)) for hit in found] == [(0, 500), (500, 1)], by
    lines = run("search", tmp_path / "x.db", "a ship", "-k", 1, "--quiet").stdout
    assert "0 (+499 equal)" in lines


def test_a_least_score_and_a_row_as_query(index, path):
    found = index.search("a ship in a storm", 9)
    assert index.search("a ship in a storm", 9, min_score=found[1].score) == found[:2]
    assert run("search", path, "ship", "--min-score", 2).stderr.endswith("fastflow: no row has a score of 2 or more\n")
    none = run("search", path, "zzzz", "--by", "words", "--where", "lang = 'en'").stderr
    assert none.endswith("no row that meets \"lang = 'en'\" has a word of the query\n")
    like = index.search_row(0, 2)
    assert rows_of(like) == [3, 8]  # its own text is left out, row 5 too
    shown = run("search", path, "--row", 0, "-k", 2, "--by", "vectors", "--json").stdout
    assert [hit["row"] for hit in json.loads(shown)["hits"]] == [3, 8]
    with pytest.raises(FastflowError, match="has no row 99"):
        index.search_row(99)


def test_a_row_of_bits_or_codes_finds_itself(folder):
    for precision in ("ubinary", "uint8"):
        coded = embed(folder, f"{precision}.db", "--precision", precision, model="default")
        with Index(coded) as index:
            own = index.search_row(3, 8, by="vectors", distinct=False)
            assert 3 not in rows_of(own)
            assert len(own) == 8


@pytest.mark.parametrize("by", ["auto", "vectors", "words"])
def test_conditions_choose_rows_by_words_too(index, by):
    where = "year >= 2003"
    assert set(rows_of(index.search("ship storm", 9, where, by=by))) <= set(range(3, 9))
    assert rows_of(index.search("ship storm", 1, {"year": 2008, "lang": "en"}, by=by)) == [8]
    assert set(rows_of(index.search("ship storm", 9, {"YEAR": [2000, 2003, 1]}, by=by))) == {0, 3}
    assert index.search("ship storm", 9, {"note": ["x", None], "year": []}, by=by) == []
    assert rows_of(index.search("ship storm", 9, {"note": "x"}, by=by)) == [0]
    assert len(index.search("ship storm", 9, {"note": None}, by="vectors", distinct=False)) == len(TEXTS) - 1


@pytest.mark.each
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"colour": 1}, "no column is called 'colour'; the columns are row, text, id, lang"),
        ({"lang": {"a": 1}}, "the filter lang holds"),
        ({"lang": [["de"]]}, "the filter lang holds"),
        ({'lang" = 1 OR "x': 1}, "no column is called"),
    ],
)
def test_filters_that_are_refused(path, where, message):
    with pytest.raises(UsageError, match=message):
        compile_condition(where, Database(path).columns)


def test_options_that_are_refused(index, path):
    with pytest.raises(UsageError, match="by must be auto, vectors, words, both, not 'bm25'"):
        index.search("a", by="bm25")
    with pytest.raises(UsageError, match="a search by words needs texts"):
        index.search(np.ones((1, index.dim)), by="words")
    assert index.search(np.ones((1, index.dim)))[0][0].words is None  # auto
    for words in ([], ["ship", "--row", 1]):
        done = run("search", path, *words)
        assert (done.exit_code, done.stderr) == (2, "fastflow: search takes a QUERY or --row N: give one of them\n")


def test_auto_is_both_only_for_weak_models(index, path, model, corpus, tmp_path):
    assert index.resolve_by("auto", True) == "both"
    assert search_command.BY == scan.BY
    with Index(path) as bare:
        assert bare.resolve_by("auto", True) == "vectors"
    assert run("embed", corpus, "-m", model, "-o", tmp_path / "x.db", "--quiet").exit_code == 0
    with Index(tmp_path / "x.db", Runtime(model)) as tuned:
        assert tuned.has_words
        assert tuned.resolve_by("auto", True) == "vectors"


def test_every_model_of_the_package_has_a_share_of_words():
    kinds = {name: scan.find_kind(Runtime(path).session) for name, path in PACKAGED.items()}
    assert kinds == dict.fromkeys(PACKAGED, "table") | {"untuned": "untuned"}


def test_a_foreign_table_of_that_name_is_no_word_search(folder, tmp_path):
    bare = embed(folder, "foreign.db", "--no-words")
    with closing(sqlite3.connect(bare)) as db, db:
        db.execute(f"CREATE VIRTUAL TABLE {WORDS} USING fts5(text, tokenize='trigram')")
    assert Database(bare).words is None


def test_a_npy_with_a_record_is_checked_against_the_model(folder, tmp_path):
    vectors = tmp_path / "x.npy"
    assert run("embed", folder / "in.jsonl", "-m", "static", "-o", vectors, "--quiet").exit_code == 0
    with pytest.raises(FastflowError, match="made with another model"):
        Index(vectors, Runtime("default", backend="cpu"))
    assert run("search", vectors, "a", "-m", "default").exit_code == 1
    os.utime(vectors, (1, 1))  # another file than the record's
    Index(vectors, Runtime("default", backend="cpu")).close()


def test_vectors_and_texts_of_a_program(index):
    runtime = Runtime("static", backend="cpu")
    vectors = runtime.encode_document(TEXTS)
    with Index(vectors, runtime, texts=iter(TEXTS)) as own, Index(vectors.tolist(), hold="int8") as bare:
        want = index.search("a ship in a storm", 9, by="vectors")
        assert [(hit.rows, hit.text) for hit in own.search("a ship in a storm", 9)] == [(h.rows, h.text) for h in want]
        assert rows_of(bare.search(vectors[4], 1)) == [4]
        assert rows_of(own.search_row(0, 1)) == [3]
        with pytest.raises(UsageError, match="has no columns"):
            own.search("a", where={"lang": "en"})
    with pytest.raises(UsageError, match="8 texts for 9 vectors: give one for each vector"):
        Index(vectors, texts=TEXTS[:8])
    with pytest.raises(FastflowError, match=r"the index: vectors come as a matrix \(N, D\)"):
        Index(5)


def test_hits_as_a_table(index):
    pytest.importorskip("pandas")
    hits = index.search("a ship in a storm", 3)
    table = to_pandas(hits)
    assert table["lang"].tolist() == ["en"] * 3
    assert table["row"].tolist() == rows_of(hits)
    assert {"score", "text", "id", "year", "rows", "similarity", "words"} < set(table.columns)
    assert len(to_pandas([])) == 0


def test_a_changed_file_says_so(folder):
    grown = embed(folder, "changing.db", "--append")
    with Index(grown) as index:
        assert not index.is_changed()
        with closing(sqlite3.connect(grown)) as db, db:
            db.execute("DELETE FROM texts WHERE row = 2")
        assert index.is_changed()
