"""nDCG, recall and BM25 against values by hand, and the files of a retrieval folder."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import embed, measure
from fastflow.evaluation.retrieval import find_best, ndcg, read_retrieval

from support.tasks import retrieval


def test_ndcg_by_hand():
    hits = np.array([False, True, False, True])
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert ndcg(hits, 3) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)
    assert ndcg(np.ones(10, bool), 25) == pytest.approx(1)  # the ideal has ten places too
    assert ndcg(np.array([False] * 10 + [True]), 1) == 0
    assert ndcg(np.array([], bool), 2) == 0


@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_the_best_come_first_and_the_first_of_equals(count):
    scores = np.array([0.5, 0.9, 0.5, -np.inf, 0.5])
    assert find_best(scores, count).tolist() == [1, 0, 2, 4][:count]


def small(folder):
    corpus = ["d1\t-\tred apple", "d2\tFruit\tgreen apple", "d3\t-\tblue sky", "d4\t-\tred sky"]
    queries = ["q1\tred", "q2\tred sky", "q3\tnothing", "q4\tgreen"]
    qrels = ["q1\td1\t1", "q1\td4\t2", "q1\td3\t-1", "q2\td4\t1", "q2\td3\t3", "q3\td1\t0", "q4\td2\t1"]
    return retrieval(folder / "small", corpus, queries, qrels)


def test_a_folder_is_read(tmp_path):
    task = read_retrieval(small(tmp_path))
    assert task.name == "small"
    assert task.documents == ["red apple", "Fruit green apple", "blue sky", "red sky"]
    assert task.queries == ["red", "red sky", "green"]  # q3 has no grade above 0
    assert [rows.tolist() for rows in task.relevant] == [[0, 3], [2], [1]]
    assert [rows.tolist() for rows in task.own] == [[], [3], []]  # q2 is the text of d4, which does not count
    assert task.size == {"queries": 3, "documents": 4}


def test_cosines_are_measured_by_hand(tmp_path):
    task = read_retrieval(small(tmp_path))
    documents = [[1.0, 0], [0, 1], [1, 1], [0.5, 0.4]]
    queries = [[9.0, 0], [0, 2], [1, 0]]
    # q1 ranks d1, d4, d3, d2: both relevant ones first. q2, without d4, ranks d2, d3, d1: second. q4: d2 is last
    gains = [1, 1 / math.log2(3), 1 / math.log2(5)]
    found = task.measures(np.array(documents + queries))
    assert found["ndcg@10"].value == pytest.approx(100 * np.mean(gains))
    assert found["recall@100"].value == 100
    assert found["ndcg@10"].at(np.array([0, 2, 1])) == pytest.approx(100 * (2 * gains[1] + gains[2]) / 3)


def test_recall_counts_the_first_hundred(tmp_path):
    corpus = [f"d{i}\t-\ttext {i}" for i in range(150)]
    folder = retrieval(tmp_path / "x", corpus, ["q\twhat"], ["q\td5\t1", "q\td99\t1", "q\td100\t1", "q\td149\t1"])
    angles = np.linspace(0, 1, 150)  # d0 is the nearest, d149 the farthest
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = measure(read_retrieval(folder), np.concatenate([vectors, [[1, 0]]]))
    assert found["recall@100"] == 50
    assert found["ndcg@10"] == pytest.approx(100 / math.log2(7) / sum(1 / math.log2(i + 2) for i in range(4)))


def bm25_by_hand(term_counts, lengths, holding, total):
    """Lucene's BM25 of one term, k1 1.2, b 0.75."""
    idf = math.log(1 + (total - holding + 0.5) / (holding + 0.5))
    norms = [1.2 * (0.25 + 0.75 * length / np.mean(lengths)) for length in lengths]
    return [idf * count / (count + norm) for count, norm in zip(term_counts, norms, strict=True)]


def test_bm25_by_hand(tmp_path, monkeypatch):
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    task, seen = read_retrieval(small(tmp_path)), []
    rank = type(task)._rank
    monkeypatch.setattr(
        type(task), "_rank", lambda self, scores: rank(self, (seen.append(row.copy()) or row for row in scores))
    )
    found = task.bm25()
    red, sky = (bm25_by_hand(counts, [2, 3, 2, 2], 2, 4) for counts in ([1, 0, 0, 1], [0, 0, 1, 1]))
    want = [red, np.add(red, sky), bm25_by_hand([0, 1, 0, 0], [2, 3, 2, 2], 1, 4)]
    for row, by_hand in zip(seen, want, strict=True):
        assert np.where(row > 0, row, 0) == pytest.approx(by_hand, rel=1e-5)
        assert (row == -np.inf).tolist() == [value == 0 for value in by_hand]
    # q2 has d3 and d1 with equal scores, so the first of them is first: rank 2 for d3
    assert found["ndcg@10"].value == pytest.approx(100 * (1 + 1 / math.log2(3) + 1) / 3)
    assert found["recall@100"].value == 100


def test_bm25_of_texts_without_a_word_retrieves_nothing(tmp_path):
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    for name, corpus, query in (("a", ["d\t-\tthe"], "apple"), ("b", ["d\t-\tapple"], "the")):
        task = read_retrieval(retrieval(tmp_path / name, corpus, [f"q\t{query}"], ["q\td\t1"]))
        assert {key: found.value for key, found in task.bm25().items()} == {"ndcg@10": 0, "recall@100": 0}


def test_a_folder_without_a_relevant_document_is_refused(tmp_path):
    folder = small(tmp_path)
    (folder / "qrels.tsv").write_text("query\tdoc\tgrade\nq2\td4\t1\n")  # its own text
    with pytest.raises(FastflowError, match="no query has another document of a grade above 0"):
        read_retrieval(folder)


@pytest.mark.slow
@pytest.mark.data
def test_cranfield(shared_data):
    """BM25 of whole documents has 36.0 in independent code with another list of stop words."""
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    task = read_retrieval(shared_data / "tasks" / "retrieval" / "cranfield")
    assert task.size == {"queries": 225, "documents": 1398}
    assert abs(task.bm25()["ndcg@10"].value - 36.0) < 0.6
    found = measure(task, embed(Runtime(dtype="float32"), task))
    assert 27 < found["ndcg@10"] < 29.5
    assert 57 < found["recall@100"] < 63
