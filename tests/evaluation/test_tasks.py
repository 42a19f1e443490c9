"""Classes, retrieval, BM25 and bitext: measures against values by hand; which texts are trained on, tested and read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import v_measure_score

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.evaluation import labelled
from fastflow.evaluation.evaluate import embed, measure
from fastflow.evaluation.labelled import SEEDS, SHOTS, read_bitext, read_labelled_texts, search_lines, v_measure
from fastflow.evaluation.retrieval import find_best, ndcg, read_retrieval

from support.tasks import bitext, retrieval, write

# ---- classes


def test_v_measure_by_hand():
    once = np.ones(4)
    assert v_measure(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), once) == pytest.approx(100)
    assert v_measure(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), once) == pytest.approx(0)
    # four clusters of one text each: homogeneity 1, completeness 1 - log 2 / log 4 = 1/2, so 2 * (1/2) / (3/2)
    assert v_measure(np.array([0, 0, 1, 1]), np.arange(4), once) == pytest.approx(200 / 3)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=20))
def test_v_measure_of_a_draw_is_scikit_learns(rows):
    labels, clusters, counts = np.array(rows).T
    if counts.sum():
        want = v_measure_score(np.repeat(labels, counts), np.repeat(clusters, counts))
        assert v_measure(labels, clusters, counts) == pytest.approx(100 * want, abs=1e-5)


def made(tmp_path, labels, splits=("all",), each=40):
    lines = [f"{split}\t{label}\t{split} {label} {i}" for split in splits for label in labels for i in range(each)]
    return read_labelled_texts(write(tmp_path / "x.tsv", "split\tlabel\ttext", *lines))


def test_classes_are_measured_from_chance_to_perfect(tmp_path):
    task, rng = made(tmp_path, "abc"), np.random.default_rng(0)
    assert task.size == {"texts": 120, "labels": 3}
    vectors = np.eye(3)[task.labels] + 0.01 * rng.normal(size=(120, 3))  # near the axis of a label, of any length
    perfect = measure(task, vectors * rng.uniform(1, 9, (120, 1)))
    assert perfect == pytest.approx({"v_measure": 100, "knn": 100, "logistic": 100})
    task = made(tmp_path, "ab", each=200)
    chance = measure(task, np.random.default_rng(0).normal(size=(400, 4)))
    assert chance["v_measure"] < 5
    task = made(tmp_path, "abcd")  # c and d are one cloud: half of its texts by chance
    half = measure(task, np.eye(3)[np.minimum(task.labels, 2)] + 0.01 * rng.normal(size=(160, 3)))
    for name in ("knn", "logistic"):
        assert 40 < chance[name] < 60
        assert 65 < half[name] < 85


def test_without_splits_a_seed_tests_what_it_does_not_train_on(tmp_path):
    task = made(tmp_path, "ab")
    for train, test in zip(task.train, task.test, strict=True):
        assert np.bincount(task.labels[train]).tolist() == [SHOTS, SHOTS]
        assert sorted([*train, *test]) == list(range(80))
    assert len({tuple(train) for train in task.train}) == SEEDS
    assert task.clustered.tolist() == list(range(80))
    small = made(tmp_path, "ab", each=5)  # half of a small class
    assert np.bincount(small.labels[small.train[0]]).tolist() == [2, 2]


def test_train_texts_come_from_train_and_only_the_drawn_are_embedded(tmp_path):
    task = made(tmp_path, "ab", ("train", "val", "test"), each=200)
    drawn = {i for train in task.train for i in train}
    assert all(task.texts[i].startswith("train") for i in drawn)
    assert [len(test) for test in task.test] == [400] * SEEDS
    assert all(task.texts[i].startswith("test") for i in [*task.test[0], *task.clustered])
    assert len(task.texts) == 400 + len(drawn) < 400 + 2 * SHOTS * SEEDS + 1
    assert measure(task, np.eye(2)[task.labels])["knn"] == 100  # rows that are only trained on do not count


def test_many_texts_are_clustered_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(labelled, "CLUSTERED", 30)
    first, again = made(tmp_path, "ab"), made(tmp_path, "ab")
    assert len(np.unique(first.clustered)) == 30
    assert first.clustered.tolist() == again.clustered.tolist() != list(range(30))


def test_the_fine_label_does_not_count(tmp_path):
    lines = [f"all\t{'ab'[i % 2]}\tfine{i}\tt{i}" for i in range(8)]
    task = read_labelled_texts(write(tmp_path / "x.tsv", "split\tlabel\tfine_label\ttext", *lines))
    assert task.labels.tolist() == [0, 1] * 4
    assert task.texts == [f"t{i}" for i in range(8)]


# ---- retrieval


def test_ndcg_by_hand():
    hits = np.array([False, True, False, True])
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert ndcg(hits, 3) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)
    assert ndcg(np.ones(10, bool), 25) == pytest.approx(1)  # the ideal has ten places too
    assert ndcg(np.array([False] * 10 + [True]), 1) == 0
    assert ndcg(np.array([], bool), 2) == 0


def test_the_best_come_first_and_the_first_of_equals():
    for count in (1, 3, 5, 9):
        assert find_best(np.array([0.5, 0.9, 0.5, -np.inf, 0.5]), count).tolist() == [1, 0, 2, 4][:count]


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
    """FTS5's BM25 of one term, k1 1.2, b 0.75."""
    idf = max(math.log((total - holding + 0.5) / (holding + 0.5)), 1e-6)
    norms = [1.2 * (0.25 + 0.75 * length / np.mean(lengths)) for length in lengths]
    return [idf * 2.2 * count / (count + norm) for count, norm in zip(term_counts, norms, strict=True)]


def test_bm25_by_hand(tmp_path, monkeypatch):
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
    """BM25 of whole documents has 36.0 in independent code without stemming."""
    task = read_retrieval(shared_data / "tasks" / "retrieval" / "cranfield")
    assert task.size == {"queries": 225, "documents": 1398}
    assert abs(task.bm25()["ndcg@10"].value - 37.0) < 0.1
    found = measure(task, embed(Runtime("untuned", dtype="float32"), task))
    assert 27 < found["ndcg@10"] < 29.5
    assert 57 < found["recall@100"] < 63


# ---- bitext: by file and line, the letters of the vectors AT; text "a2" is another text of the vector "a"

AT = {"a": [1, 0, 0], "b": [0, 2, 0], "c": [0, 0, 3], "d": [1, 1, 0], "e": [0, 9, 1], "-": [0, 0, 0]}
BITEXTS = [  # lines of each file, and the share of right lines of every way
    ({"x": "a b c", "y": "a2 b2 c2"}, {"x": {"y": 100}, "y": {"x": 100}}),
    ({"x": "d b c", "y": "d2 e c"}, {"x": {"y": 100}, "y": {"x": 100}}),  # lengths do not count
    ({"x": "a b c", "y": "b c a"}, {"x": {"y": 0}, "y": {"x": 0}}),  # shuffled
    ({"x": "a b c", "y": "a2 c2 b2"}, {"x": {"y": 33.33}, "y": {"x": 33.33}}),
    # line 2 of x finds line 1 of y, another text; line 2 of y finds line 1 of x, which is its own text
    ({"x": "a a b", "y": "a2 a3 b"}, {"x": {"y": 66.67}, "y": {"x": 100}}),
    ({"x": "a b c", "y": "d d2 d3"}, {"x": {"y": 33.33}, "y": {"x": 33.33}}),  # equal vectors: the first line only
    ({"x": "d d2 c", "y": "b a c"}, {"x": {"y": 66.67}, "y": {"x": 66.67}}),  # equal cosines: the first line only
    (
        {"x": "b - c", "y": "b a c"},
        {"x": {"y": 66.67}, "y": {"x": 66.67}},
    ),  # a zero vector: every cosine 0, the first line
    (
        {"x": "a a b", "y": "a2 a3 b", "z": "b a c"},
        {"x": {"y": 66.67, "z": 33.33}, "y": {"x": 100, "z": 33.33}, "z": {"x": 33.33, "y": 0}},
    ),
]


def vectors_of(task):
    return np.array([AT[text[0]] for text in task.texts], np.float64)


@pytest.mark.parametrize(("files", "want"), BITEXTS, ids=[" | ".join(files.values()) for files, _ in BITEXTS])
def test_every_way_of_a_bitext_by_hand(tmp_path, files, want):
    task = read_bitext(bitext(tmp_path, **{name: lines.split() for name, lines in files.items()}))
    assert task.size == {"languages": len(files), "lines": 3}
    assert task.compare_all(vectors_of(task)) == want
    found, pivot = measure(task, vectors_of(task)), want["x"]
    means = {name: (pivot[name] + want[name]["x"]) / 2 for name in pivot}
    assert found["accuracy"] == pytest.approx(np.mean(list(means.values())), abs=0.01)
    named = {"x to y": pivot["y"], "y to x": want["y"]["x"]}
    if len(means) > 1:
        named = {f"x and {name}": mean for name, mean in means.items()}
    mixed = [f"{name}, mixed" for name in named]
    assert list(found) == ["accuracy", "mixed", "share", "languages", *named, *mixed]
    assert {name: found[name] for name in named} == pytest.approx(named, abs=0.01)
    assert found["mixed"] == pytest.approx(np.mean([found[name] for name in mixed]), abs=0.01)
    assert all(found[f"{name}, mixed"] <= found[name] + 1e-9 for name in named)  # more lines to choose among


MIXED = [  # lines of x and y; right lines of x to y and of y to x; share of the other language after the nearest line
    ("a b c", "a2 b2 c2", 100, 100, 50),  # every translation is at hand: two lines of either language follow
    ("a a2 b", "a3 c b2", 33.33, 66.67, 55.56),  # lines 1 and 2 of x find each other, line 1 of y finds x's line 1
    ("a b", "a b", 100, 100, 50),  # a text that both files have is its own translation
    ("a b c", "b2 c2 a2", 0, 0, 50),  # the nearest is another line's translation
]


@pytest.mark.parametrize(("x", "y", "there", "back", "share"), MIXED)
def test_a_mixed_search_by_hand(tmp_path, x, y, there, back, share):
    task = read_bitext(bitext(tmp_path, x=x.split(), y=y.split()))
    found = measure(task, vectors_of(task))
    assert [found["x to y, mixed"], found["y to x, mixed"]] == pytest.approx([there, back], abs=0.01)
    assert found["share"] == pytest.approx(share, abs=0.01)


def test_a_mixed_search_against_numpy_in_float64(tmp_path):
    rng, n, names = np.random.default_rng(1), 40, [f"{letter}{i}" for letter in "xy" for i in range(40)]
    task = read_bitext(bitext(tmp_path, x=names[:n], y=names[n:]))
    own = rng.normal(size=(n, 12))
    x = np.concatenate([own, own + rng.normal(size=own.shape)]) + np.repeat([[0.0], [0.8]], n, axis=0)
    found = measure(task, x.astype(np.float32))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    scores = unit @ unit.T - 9 * np.eye(2 * n)
    order = np.argsort(-scores, axis=1)
    language, want = np.repeat([0, 1], n), np.concatenate([np.arange(n, 2 * n), np.arange(n)])
    right = 100 * (order[:, 0] == want)
    assert 0 < right.mean() < 100
    assert [found["x to y, mixed"], found["y to x, mixed"]] == pytest.approx([right[:n].mean(), right[n:].mean()])
    after = language[order[:, 1:11]] != language[:, None]
    assert found["share"] == pytest.approx(100 * after.mean())
    assert found["share"] < 40


def test_the_v_measure_of_languages_is_of_all_lines(tmp_path):
    rng, names = np.random.default_rng(2), [f"{letter}{i}" for letter in "xyz" for i in range(30)]
    task = read_bitext(bitext(tmp_path, **{names[i][0]: names[i : i + 30] for i in (0, 30, 60)}))
    x, cones = rng.normal(size=(90, 16)), np.repeat(10 * np.eye(16)[:3], 30, axis=0)
    assert measure(task, x + cones)["languages"] == 100
    assert measure(task, x)["languages"] < 20


def test_an_interval_of_a_bitext_draws_lines(tmp_path):
    task = read_bitext(bitext(tmp_path, x=["a", "b", "c", "c2"], y=["a", "c", "c2", "c"]))
    found = task.measures(vectors_of(task))  # right: x to y line 1 only; y to x line 1 only
    for name in ("accuracy", "x to y", "y to x"):
        assert found[name].at(np.array([3, 1, 0, 0])) == 75
    assert found["accuracy"].interval() == pytest.approx((15.0, 85.0), abs=0.01)  # Wilson's of 2 in 4


def test_equal_vectors_are_found_at_the_first_line_whatever_the_shape_of_the_product():
    rng = np.random.default_rng(0)
    for lines, width in ((3, 32), (5, 33), (9, 33), (9, 256), (33, 257)):
        x = rng.normal(size=(2 * lines, width)).astype(np.float32)
        x[2 * lines - 1] = x[lines]  # the last line of the documents is as the first
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        x[:lines] = x[lines]  # and all queries too
        assert np.flatnonzero(search_lines(x, np.arange(lines), np.arange(lines, 2 * lines))[0]).tolist() == [0]


def test_many_lines_are_compared_in_blocks(tmp_path, monkeypatch):
    names = [f"{letter}{i}" for i in range(7) for letter in "abc"]
    task = read_bitext(bitext(tmp_path, x=names, y=names))
    whole = task.compare_all(vectors_of(task))
    assert whole == {"x": {"y": 14.29}, "y": {"x": 14.29}}
    for cosines in (1, 5 * 3, 8 * 3):
        monkeypatch.setattr("fastflow.evaluation.retrieval.COSINES", cosines)
        assert task.compare_all(vectors_of(task)) == whole
