"""V-measure and few-shot accuracy of labelled texts, and which texts a seed trains on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import v_measure_score

from fastflow.evaluation import classes
from fastflow.evaluation.classes import SEEDS, SHOTS, read_labelled_texts, v_measure
from fastflow.evaluation.evaluate import measure

from support.tasks import write

HEADER = "split\tlabel\ttext"


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
    return read_labelled_texts(write(tmp_path / "x.tsv", HEADER, *lines))


def corners(task, sides):
    """A vector near the axis of each text's label, of any length."""
    rng = np.random.default_rng(0)
    return (np.eye(sides)[task.labels] + 0.01 * rng.normal(size=(len(task.texts), sides))) * rng.uniform(1, 9)


def test_classes_that_lie_apart_are_measured_as_perfect(tmp_path):
    task = made(tmp_path, "abc")
    assert task.size == {"texts": 120, "labels": 3}
    assert measure(task, corners(task, 3)) == pytest.approx({"v_measure": 100, "knn": 100, "logistic": 100})


def test_vectors_without_a_relation_to_labels_are_measured_as_chance(tmp_path):
    task = made(tmp_path, "ab", each=200)
    found = measure(task, np.random.default_rng(0).normal(size=(400, 4)))
    assert found["v_measure"] < 5
    assert 40 < found["knn"] < 60
    assert 40 < found["logistic"] < 60


def test_a_class_that_lies_with_another_costs_its_share(tmp_path):
    task = made(tmp_path, "abcd")
    noise = 0.01 * np.random.default_rng(0).normal(size=(160, 3))
    vectors = np.eye(3)[np.minimum(task.labels, 2)] + noise  # c and d are one cloud: half of its texts by chance
    found = measure(task, vectors)
    assert 65 < found["knn"] < 85
    assert 65 < found["logistic"] < 85


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


def test_many_texts_are_clustered_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(classes, "CLUSTERED", 30)
    first, again = made(tmp_path, "ab"), made(tmp_path, "ab")
    assert len(np.unique(first.clustered)) == 30
    assert first.clustered.tolist() == again.clustered.tolist() != list(range(30))


def test_the_fine_label_does_not_count(tmp_path):
    lines = [f"all\t{'ab'[i % 2]}\tfine{i}\tt{i}" for i in range(8)]
    task = read_labelled_texts(write(tmp_path / "x.tsv", "split\tlabel\tfine_label\ttext", *lines))
    assert task.labels.tolist() == [0, 1] * 4
    assert task.texts == [f"t{i}" for i in range(8)]
