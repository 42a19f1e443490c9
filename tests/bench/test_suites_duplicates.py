"""The duplicates suite: engines that find other pairs than float64 are not timed; recall is of exact pairs."""

from dataclasses import replace
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from time import sleep

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.bench.measure.meter import Meter, read_anonymous
from fastflow.bench.peers.pairs import LIMIT, PAIRS, PairEngine
from fastflow.bench.report.table import make_tables
from fastflow.bench.suites import duplicates
from fastflow.bench.suites.texts import make_near_texts
from fastflow.bench.suites.workbench import open_workbench
from fastflow.errors import FastflowError, UsageError

from support.benches import ENCODER, SMALL, absent, ask, needs

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")
COUNTS = (300, 600)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(duplicates, "CHECKED", 400)
    with open_workbench(None, SMALL) as bench:
        yield lambda *names: duplicates.run_duplicates(ask(bench, names, replace(ENCODER, duplicates=COUNTS)))


@pytest.fixture
def offer(monkeypatch):
    """Add an engine whose function of the float64 pairs (p, 2) and the number of texts is ``find``."""

    def add(name, find, rule="pairs", **more):
        def open_engine(*_):
            return lambda texts, x: lambda: find(count_pairs(texts), len(texts))

        monkeypatch.setitem(PAIRS, name, PairEngine(open_engine, rule, **more))

    return add


def count_pairs(texts):
    x = np.asarray(Runtime("static").encode(texts), np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return np.argwhere(np.triu(x @ x.T, 1) >= LIMIT)


def test_every_size_has_rows_of_pairs_and_of_the_whole_way(run):
    results = run("numpy")
    assert results.skipped == []
    where = [(row["batch"], row["subject"], row["name"]) for row in results.rows]
    assert where == [
        (count, *each)
        for count in COUNTS
        for each in (
            (duplicates.ALONE, "fastflow"),
            (duplicates.ALONE, "numpy"),
            (duplicates.WHOLE, "fastflow"),
        )
    ]
    for row in (row for row in results.rows if row["subject"] == duplicates.ALONE):
        assert (row["recall"], row["pairs"]) == (1.0, len(count_pairs(make_near_texts(row["batch"]))))
        assert row["pairs"] > 50
        assert row["cpu_ms"] > 0
        assert (row["compute_fraction"] is None) == (row["name"] == "numpy")
    names = [ratio["name"].removeprefix("duplicates, ") for ratio in results.ratios]
    assert names[:3] == [
        "300 vectors to near pairs: fastflow float32 against numpy float32",
        "300 vectors to near pairs: fastflow against numpy, processor time",
        "300 vectors to near pairs: fastflow, processor time",
    ]
    own, other = results.rows[:2]
    assert results.ratios[1]["value"] == other["cpu_ms"] / own["cpu_ms"]
    text = "\n".join(make_tables(results.rows))
    assert text.count("vectors to near pairs; 1 thread; 300 texts") == 1
    assert "recall: share of the exact pairs found" in text


def test_an_engine_that_misses_a_pair_is_not_timed_and_ours_ends_the_run(run, offer):
    offer("misses", lambda exact, _: exact[1:])
    offer("invents", lambda exact, _: np.concatenate([exact, [[0, 399]]]))
    offer("removes", lambda exact, _: np.setdiff1d(exact[:, 1], [])[:0], "kept")
    offer("joins", lambda _, count: np.arange(count), "groups")
    wrong = ["misses", "invents", "removes", "joins"]
    left = run(*wrong).skipped
    assert [entry["name"] for entry in left] == [f"{name} float32" for name in wrong]
    assert all("finds other pairs than float64; it is not timed" in entry["reason"] for entry in left)
    offer("fastflow", lambda exact, _: exact[1:])
    with pytest.raises(FastflowError, match="fastflow float32 finds other pairs"):
        run()
    with pytest.raises(UsageError, match="unknown peer 'annoy' for the duplicates suite"):
        run("annoy")


def test_the_recall_of_an_index_is_of_pairs_that_are_not_both_kept(run, offer):
    offer("lazy", lambda _, count: np.arange(count), "kept")
    offer("strict", lambda exact, count: np.setdiff1d(np.arange(count), exact[:, 1]), "kept")
    found = {(row["name"], row["recall"]) for row in run("lazy", "strict").rows if row["subject"] == duplicates.ALONE}
    assert found == {("fastflow", 1.0), ("lazy", 0.0), ("strict", 1.0)}


def test_many_texts_are_timed_apart_and_an_engine_that_takes_long_is_left_out(run, offer, monkeypatch):
    offer("slow", lambda exact, _: exact, power=40.0)
    monkeypatch.setattr(duplicates, "ONCE", 500)
    results = run("slow")
    assert [entry["name"] for entry in results.skipped] == ["slow float32"]
    assert "600 texts would take it about" in results.skipped[0]["reason"]
    assert [row["batch"] for row in results.rows if row["name"] == "slow"] == [300]
    pair, way = results.rows[-2:]
    assert (way["subject"], way["note"]) == (duplicates.WHOLE, "texts are embedded and compared apart")
    assert way["cpu_ms"] > pair["cpu_ms"]
    assert way["median_ms"] > pair["median_ms"]


def test_who_is_missing_is_named(run, monkeypatch):
    def open_engine(*_):
        raise ModuleNotFoundError("No module named 'faiss'", name="faiss")

    monkeypatch.setitem(PAIRS, "faiss", PairEngine(open_engine))
    assert [entry["reason"] for entry in run("faiss").skipped] == [absent("faiss")]


@pytest.mark.slow
def test_the_peers_agree(run):
    needs("semhash", "faiss", "sentence_transformers")
    results = run(*[name for name in PAIRS if name != "fastflow"])
    assert results.skipped == []
    rows = [row for row in results.rows if row["subject"] == duplicates.ALONE]
    assert {row["name"] for row in rows} == set(PAIRS)
    for row in rows:
        rule = PAIRS[row["name"]].rule
        assert row["recall"] is None if rule == "groups" else row["recall"] >= (1.0 if rule == "pairs" else 0.9)
    whole = {row["name"] for row in results.rows if row["subject"] == duplicates.WHOLE}
    assert whole == {"fastflow", "semhash"}


def test_texts_are_distinct_equal_in_every_run_and_near_others():
    texts = make_near_texts(500)
    assert len(set(texts)) == len(texts) == 500
    assert make_near_texts(500) == texts
    assert len({*count_pairs(texts)[:, 1].tolist()}) > 100


def test_a_meter_notes_processor_time_memory_and_the_result():
    if not read_anonymous():
        pytest.skip("this system does not tell the memory of a process")
    meter, size = Meter(), 64_000_000

    def fill():
        # a map of its own: an allocation may reuse memory that earlier tests have freed
        total, end = 0.0, np.frombuffer(mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS))
        end[:] = 1
        for _ in range(40):
            total += float(end.sum())
        return total

    def rest():
        sleep(0.2)

    assert meter.watch(rest, 1) >= 0.2
    meter.watch(fill, 1)
    assert meter.found[fill] == 40 * size / 8
    assert meter.seconds[rest][0] < 0.15
    assert meter.memory[fill] > 0.9 * size / 1e6 > meter.memory[rest]
