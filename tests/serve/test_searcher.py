"""The file of a server: how it holds the rows, and what it learns of its speed. Refusals: commands/test_refusals.py."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import numpy as np
import pytest

from fastflow import Index, Runtime
from fastflow.serve import searcher as module
from fastflow.serve.refusals import Refused
from fastflow.serve.searcher import Searcher

from support.commands import run
from support.databases import make
from support.sentence_dirs import make_directory, pooling


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
    """Codes that the file stores are held as they are, and distances have none."""
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
        assert asyncio.run(found.find(query, 5))[0] == index.search(sentences[7], 5)
    found.close()


def test_an_empty_file_has_no_hits(tmp_path, runtime):
    path = make(tmp_path / "x.db", np.zeros((0, 256), np.float32), {"fingerprint": runtime.fingerprint})
    found = Searcher(path, runtime)
    assert asyncio.run(found.find(np.ones(256, np.float32), 3))[0] == []
    found.close()


def test_requests_that_are_refused_come_back_one_after_the_other(searcher):
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
    asyncio.run(searcher.find(runtime.encode_query("a"), 1))
    assert searcher._seconds < 90
