"""Tasks found by their headers, measured, and shown: the map, its table and its errors."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.evaluation import evaluate
from fastflow.evaluation.draws import Measured, auc_of, interval_of, mean_of, spearman_draws
from fastflow.evaluation.evaluate import HEADER, Pairs, auc, find_tasks, measure, ranks, similarities, spearman
from fastflow.evaluation.results import evaluate_tasks, tasks_table

from support.tasks import retrieval, write

pytest.importorskip("bm25s", reason="bm25s is not installed")


@pytest.fixture
def folder(tmp_path):
    """One task of each kind, at several depths."""
    write(tmp_path / "sts.tsv", HEADER, "x\t1\ta\tb", "x\t2\ta\tc", "x\t3\tb\tc")
    write(tmp_path / "own" / "pairs.tsv", "split\tlabel\tsentence1\tsentence2", "all\t1\ta\tb", "all\t0\ta\tc")
    write(tmp_path / "own" / "texts.tsv", "split\tlabel\ttext", *(f"all\t{i % 2}\tt{i}" for i in range(6)))
    retrieval(tmp_path / "own" / "search", ["d1\t-\ta", "d2\ttwo\tb"], ["q1\tc"], ["q1\td1\t1"])
    write(tmp_path / "own" / "notes.txt", "not a task")
    return tmp_path


class Encoder:
    """Vectors drawn from a text's letters and its prompt."""

    def encode(self, texts, prompt=""):
        return np.stack([np.random.default_rng(list((prompt + text).encode())).normal(size=3) for text in texts])

    def encode_query(self, texts):
        return self.encode(texts, "query: ")

    def encode_document(self, texts):
        return self.encode(texts, "document: ")


def test_a_folder_is_searched_for_tasks_of_every_kind(folder):
    found = find_tasks([folder])
    assert [task.name for task in found] == ["sts", "pairs", "texts", "search"]
    assert [getattr(task, "kind", "scored") for task in found] == ["scored", "pairs", "classes", "retrieval"]
    assert [task.name for task in find_tasks([folder / "own" / "search", folder / "sts.tsv"])] == ["search", "sts"]
    (folder / "empty").mkdir()
    with pytest.raises(FastflowError, match=r"empty: holds no \.tsv file"):
        find_tasks([folder / "empty"])


def test_links_to_folders_and_hidden_folders_are_not_searched(folder):
    (folder / "own" / "back").symlink_to(folder)
    write(folder / ".checkpoints" / "sts.tsv", HEADER, "x\t1\ta\tb", "x\t2\ta\tc")
    assert [task.name for task in find_tasks([folder])] == ["sts", "pairs", "texts", "search"]
    assert [task.name for task in find_tasks([folder / "own" / "back" / "own"])] == ["pairs", "texts", "search"]


def test_measure_takes_the_vectors_of_the_texts(folder):
    scored, pairs, texts, search = find_tasks([folder])
    assert isinstance(scored, Pairs)
    encode = Encoder().encode
    want = round(100 * spearman(similarities(encode, scored), scored.scores), 2)
    assert measure(scored, encode(scored.texts)) == {"all": want, "wmean": want}
    assert pairs.texts == ["a", "b", "c"]
    assert list(measure(pairs, encode(pairs.texts))) == ["ap"]
    assert list(measure(texts, encode(texts.texts))) == ["v_measure", "knn", "logistic"]
    assert search.texts == ["a", "two b", "c"]
    assert list(measure(search, encode(search.texts))) == ["ndcg@10", "recall@100"]


def test_queries_and_documents_have_their_prompts(folder):
    search = find_tasks([folder / "own" / "search"])[0]
    vectors = evaluate.embed(Encoder(), search)
    assert np.array_equal(vectors, Encoder().encode(["document: a", "document: two b", "query: c"]))


def test_rows_and_table_hold_value_interval_and_bm25(folder):
    rows = evaluate_tasks(Encoder(), find_tasks([folder])[1:])
    sizes = [{"pairs": 2}, {"texts": 6, "labels": 2}, {"queries": 1, "documents": 2}]
    for row, size in zip(rows, sizes, strict=True):
        assert size.items() <= row.items()
        for found in row["measures"].values():
            low, high = found["interval"]
            assert 0 <= low <= found["value"] <= high <= 100
    assert rows[2]["measures"]["recall@100"]["bm25"] == 0  # no word in common: nothing retrieved
    lines = tasks_table(rows).split("\n")
    assert lines[0].split() == ["set", "measure", "value", "95", "%", "interval", "BM25"]
    assert [line.split()[:2] for line in lines[1:]] == [[row["set"], name] for row in rows for name in row["measures"]]
    assert lines[-1].split()[-1] == "0.00"


@pytest.mark.parametrize(("name", "library"), [("texts", "scikit-learn"), ("search", "bm25s")])
def test_a_task_whose_library_is_absent_names_the_extra(folder, monkeypatch, name, library):
    monkeypatch.setattr(evaluate, "find_spec", lambda module: None)
    path = folder / "own" / name
    with pytest.raises(FastflowError, match=rf"{name}.* needs {library}.*pip install scikit-learn scipy bm25s"):
        find_tasks([path if path.is_dir() else path.with_suffix(".tsv")])
    assert len(find_tasks([folder / "sts.tsv", folder / "own" / "pairs.tsv"])) == 2


def test_the_interval_of_a_mean_is_the_normal_one():
    values = np.random.default_rng(0).random(400)
    found = mean_of(values)
    low, high = found.interval()
    assert found.value == pytest.approx(100 * values.mean())
    half = 1.96 * 100 * values.std() / np.sqrt(len(values))
    assert [low, high] == pytest.approx([found.value - half, found.value + half], abs=half / 8)
    assert found.interval() == (low, high)
    assert found.interval(seed=1) != (low, high)


def test_the_interval_stays_around_a_value_that_draws_raise():
    found = Measured(50, lambda counts: 40 + (counts > 1).sum())  # a draw always has texts that occur twice
    low, high = found.interval()
    assert low < found.value == 40 < high


def test_an_undefined_measure_has_no_interval():
    assert np.isnan(Measured(3, lambda counts: float("nan")).interval()).all()


def test_draws_of_a_rank_correlation_are_about_its_value():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = x + rng.normal(size=400)
    value = 100 * spearman(x, y)
    drawn = spearman_draws([(ranks(x), ranks(y))])
    low, high = interval_of(drawn, value)
    assert low < value < high
    standard_error = 100 * (1 - (value / 100) ** 2) / np.sqrt(400)  # of a correlation of normal numbers
    assert 3 * standard_error < high - low < 5 * standard_error
    same = spearman_draws([(ranks(x), ranks(y)), (ranks(x[:40]), ranks(y[:40]))])
    assert np.array_equal(same, spearman_draws([(ranks(x), ranks(y)), (ranks(x[:40]), ranks(y[:40]))]))
    assert np.isnan(spearman_draws([(ranks(np.ones(9)), ranks(x[:9]))])).all()


def test_the_auc_with_every_pair_once_is_that_of_ranks():
    rng = np.random.default_rng(0)
    similarity, positive = rng.integers(0, 9, 200) / 8, rng.random(200) < 0.4  # with ties
    found = auc_of(positive, similarity)
    assert found.value == pytest.approx(100 * auc(positive, similarity))
    low, high = found.interval()
    assert low < found.value < high
    assert np.isnan(auc_of(np.ones(5, bool), similarity[:5]).value)
