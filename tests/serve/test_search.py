"""/search and the file of a server: rows of a loaded file, in the queue and under the limits of other requests."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from contextlib import ExitStack, closing
from shutil import copy

import numpy as np
import pytest

from fastflow import Index, Runtime
from fastflow.serve import searcher as module
from fastflow.serve.app import NO_FILE
from fastflow.serve.requests import Refused
from fastflow.serve.routes import MOST_ROWS
from fastflow.serve.searcher import Searcher

from support.commands import run
from support.databases import make
from support.sentence_dirs import make_directory, pooling
from support.servers import WAIT, Gate, request, serving, until

QUERIES = ["a gale at sea", "mountains", "Brot"]


def rows(hits) -> list[dict]:
    return [json.loads(json.dumps(hit._asdict())) for hit in hits]


def test_hits_are_those_of_an_index(librarian, library, runtime):
    with Index(library, runtime) as index:
        want = [rows(hits) for hits in index.search(QUERIES, 4)]
    answer = librarian.post("/search", {"query": QUERIES, "k": 4})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == {"similarity": "cosine", "truncated_texts": 0, "hits": want}
    one = librarian.post("/search", {"query": QUERIES[0], "k": 4})
    assert one.json["hits"] == want[:1]
    best = want[0][0]
    assert best["fields"] == {"lang": "en", "year": 1851}
    assert best["id"] == 9007199254740993
    assert b"9007199254740993" in answer.body


def test_without_k_ten_rows_are_found_and_all_where_there_are_fewer(librarian):
    assert len(librarian.post("/search", {"query": "a"}).json["hits"][0]) == 10
    assert len(librarian.post("/search", {"query": "a", "k": MOST_ROWS}).json["hits"][0]) == 25


def test_without_a_file_it_says_how_to_load_one(server):
    answer = server.post("/search", {"query": "a"})
    assert (answer.status, answer.json) == (404, {"error": NO_FILE, "error_type": "Validation"})
    assert "/search" not in server.get("/openapi.json").json["paths"]
    assert server.get("/info").json["search"] is None


def test_a_search_is_timed_for_each_query(librarian):
    assert librarian.get("/info").json["search"]["file"] == "library.db"
    counted = searches(librarian)
    librarian.post("/search", {"query": ["a", "b", "c"]})
    assert searches(librarian) == counted + 3


def searches(server) -> int:
    lines = server.get("/metrics").body.decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("fastflow_search_duration_count"))))


@pytest.mark.slow
def test_a_long_query_is_cut_and_counted(librarian, library):
    answer = librarian.post("/search", {"query": "word " * 500})
    assert answer.json["truncated_texts"] == 1
    with serving(rate=50_000.0, search=library, truncate=False) as strict:
        assert strict.post("/search", {"query": "word " * 500}).status == 422


@pytest.mark.slow
def test_requests_take_turns_to_search(library):
    with serving(rate=50_000.0, search=library) as server:
        server.service.searcher._seconds = 15.0
        with server.service.searcher.turn(1.0):
            answer = server.post("/search", {"query": "a"})
        assert (answer.status, answer.headers["retry-after"]) == (429, "10")
        assert server.post("/search", {"query": "a"}).status == 200


@pytest.mark.slow
def test_the_queries_of_a_client_that_has_gone_are_not_searched(library, monkeypatch):
    with serving(rate=50_000.0, search=library) as server:
        gate = Gate(server.service.searcher._search)
        monkeypatch.setattr(server.service.searcher, "_search", gate)
        with server.connect() as connection:
            connection.sendall(request("/search", json.dumps({"query": ["a"] * 5}).encode()))
            assert gate.entered.wait(WAIT)
        assert server.get("/health").status == 200  # later than the end of that connection
        gate.opened.set()
        until(lambda: server.service.active == 0)
        assert server.service.metrics.value("fastflow_cancelled_requests") == 1
        assert len(gate.seen) < 5
        assert server.service.searcher._waiting == 0


@pytest.mark.slow
def test_a_search_past_its_deadline_is_503(library, monkeypatch):
    with serving(rate=50_000.0, search=library, timeout=0.3) as server:
        gate = Gate(server.service.searcher._search)
        monkeypatch.setattr(server.service.searcher, "_search", gate)
        threading.Timer(0.5, gate.opened.set).start()
        answer = server.post("/search", {"query": ["a", "b"]})
        assert (answer.status, len(gate.seen)) == (503, 1)


@pytest.fixture
def spoilt(library, tmp_path):
    path = copy(library, tmp_path / "copy.db")
    with serving(rate=50_000.0, search=path) as server:
        yield server, path


def test_a_file_that_was_damaged_is_a_sentence_without_its_path(spoilt, caplog):
    server, path = spoilt
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE run")
    answer = server.post("/search", {"query": "a storm"})
    assert answer.status == 424
    assert answer.json["error"].startswith("copy.db could not be searched")
    assert str(path.parent) not in answer.body.decode()
    assert server.post("/embed", {"inputs": "a"}).status == 200


def test_a_file_that_grows_or_is_replaced_fails_no_search(spoilt, library, runtime):
    server, path = spoilt
    done, found = threading.Event(), []

    def ask():
        while not done.is_set() or len(found) < 20:
            found.append(server.post("/search", {"query": "a storm", "k": 100}))

    asking = threading.Thread(target=ask)
    asking.start()
    with Index(path, runtime) as index:
        for number in range(8):
            fields = {name: [None] for name in index.columns if name not in ("row", "text", index.id_column)}
            index.add([f"A new text, number {number}."], [number], fields)
    os.replace(copy(library, path.with_name("other.db")), path)
    done.set()
    asking.join(WAIT)
    assert [answer.status for answer in found] == [200] * len(found)
    assert len(server.post("/search", {"query": "a storm", "k": 100}).json["hits"][0]) == 25
    assert server.get("/info").json["search"]["rows"] == 25


def test_filters_words_and_least_scores(librarian):
    hits = librarian.post("/search", {"query": "Brot", "filter": {"lang": "de"}, "k": 100}).json["hits"][0]
    assert {hit["fields"]["lang"] for hit in hits} == {"de"}
    by = {by: librarian.post("/search", {"query": "storm", "by": by}).json["hits"][0] for by in ("vectors", "words")}
    assert all("storm" in hit["text"].lower() for hit in by["words"])
    least = by["vectors"][2]["score"]
    cut = librarian.post("/search", {"query": "storm", "by": "vectors", "min_score": least}).json["hits"][0]
    assert cut == by["vectors"][:3]


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("inf"), b"bytes"])
def test_a_value_that_json_cannot_hold_is_an_error(library, tmp_path, value):
    path = copy(library, tmp_path / "copy.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE texts SET year = ?", [value])
    with serving(rate=50_000.0, search=path) as server:
        answer = server.post("/search", {"query": "a storm"})
    assert answer.status == 424
    assert "a row that was found in copy.db holds a value that JSON has no form for" in answer.json["error"]


@pytest.fixture
def searcher(library, runtime):
    found = Searcher(library, runtime, 1)
    yield found
    found.close()


def test_it_describes_the_file_by_its_name(searcher):
    assert searcher.describe() == {"file": "library.db", "rows": 25, "precision": "float32", "dim": 256}


@pytest.mark.parametrize(
    ("precision", "similarity", "hold"),
    [
        ("float32", "cosine", "int8"), ("float16", "dot", "int8"), ("float32", "euclidean", "vectors"),
        ("int8", "cosine", "vectors"), ("uint8", "cosine", "vectors"), ("ubinary", "cosine", "vectors"),
        ("binary", "cosine", "vectors"),
    ],
)  # fmt: skip
def test_it_holds_codes_where_they_rank(
    bert, model, tmp_path, corpus, sentences, monkeypatch, precision, similarity, hold
):
    held = []

    class Noted(Index):
        def __init__(self, *arguments, **options):
            held.append(options.get("hold"))
            super().__init__(*arguments, **options)

    monkeypatch.setattr(module, "Index", Noted)
    directory = model  # int8 needs a calibration
    if not precision.endswith("int8"):
        directory = make_directory(tmp_path / "st", bert, [pooling("mean")], similarity_fn_name=similarity)
    options = ["-m", directory, "-o", tmp_path / "x.db", "--precision", precision, "--quiet"]
    assert run("embed", corpus, *options).exit_code == 0
    runtime = Runtime(directory)
    found = Searcher(tmp_path / "x.db", runtime)
    assert held == [None, hold]
    query = runtime.encode_query(sentences[7], **found.query_options)
    with Index(tmp_path / "x.db", runtime) as index:
        assert asyncio.run(found.find(query, sentences[7], {"k": 5}))[0] == index.search(sentences[7], 5)
    found.close()


def test_an_empty_file_has_no_hits(tmp_path, runtime):
    path = make(tmp_path / "x.db", np.zeros((0, 256), np.float32), {"fingerprint": runtime.fingerprint})
    found = Searcher(path, runtime)
    assert asyncio.run(found.find(np.ones(256, np.float32), "a", {"k": 3}))[0] == []
    found.close()


def test_refused_requests_come_back_one_after_the_other(searcher):
    searcher._seconds = 1.0
    told = []
    with ExitStack() as turns:
        for _ in range(11):
            turns.enter_context(searcher.turn(10.0))
        for _ in range(3):
            with pytest.raises(Refused, match="--max-queue-seconds") as refused, searcher.turn(10.0):
                pass
            told.append(refused.value.headers["retry-after"])
    assert told == ["6", "7", "8"]  # half of 10 s waits then
    with searcher.turn(10.0):
        assert searcher._promised.work == 0


def test_its_speed_is_learnt(searcher, runtime):
    searcher._seconds = 100.0
    asyncio.run(searcher.find(runtime.encode_query("a"), "a", {"k": 1}))
    assert searcher._seconds < 90
