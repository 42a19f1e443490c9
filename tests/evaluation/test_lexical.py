"""The analyses of a report, against values worked out by hand, by brute force or by SciPy."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import LABELLED, Pairs, auc, read_labelled, similarities
from fastflow.evaluation.lexical import SMALL, bias, distances, levenshtein
from fastflow.evaluation.words import BANDS, NEIGHBOURS, nearest, word_bands
from fastflow.report.curves import curves_in, logs_beside, read_log, stops_in

words = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)


@cache
def by_definition(a: tuple, b: tuple) -> int:
    if not a or not b:
        return len(a) + len(b)
    change = by_definition(a[1:], b[1:]) + (a[0] != b[0])
    return min(by_definition(a[1:], b) + 1, by_definition(a, b[1:]) + 1, change)


@settings(deadline=None, derandomize=True)
@given(words, words)
def test_levenshtein_is_its_definition(a, b):
    assert levenshtein(a, b) == by_definition(a, b)


def made(first: list[str], second: list[str], scores: list[float]) -> Pairs:
    return Pairs("x", ["s"] * len(first), np.array(scores), first, second)


def test_edit_distance_counts_lower_cased_words_and_marks():
    pairs = made(["A dog runs.", "Yes", "it's red"], ["a cat runs", "yes", "It is red"], [1, 2, 3])
    # dog/cat and the full stop; case aside the same; it ' s red -> it is red: one deletion, one substitution
    assert distances(pairs).tolist() == [2, 0, 2]


def test_bias_is_spearman_of_distance_and_cosine_and_of_gold_among_the_close():
    rng = np.random.default_rng(0)
    edits, cosines, gold = rng.integers(0, 9, 60), rng.normal(size=60), rng.normal(size=60)
    found, close = bias(made(["a"] * 60, ["b"] * 60, gold), edits, cosines), edits <= SMALL
    assert abs(found["edit"] - 100 * scipy.stats.spearmanr(edits, cosines).statistic) <= 1e-10
    assert abs(found["small_gold"] - 100 * scipy.stats.spearmanr(cosines[close], gold[close]).statistic) <= 1e-10
    assert found["small_pairs"] == close.sum()


def test_bias_without_close_pairs_is_not_a_number():
    assert np.isnan(bias(made(["a"] * 3, ["b"] * 3, [1, 2, 3]), np.array([7, 8, 9]), np.arange(3.0))["small_gold"])


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_ranked_right(rows):
    positive, scores = np.array([r[0] for r in rows]), np.array([float(r[1]) for r in rows])
    good, bad = scores[positive], scores[~positive]
    if not len(good) or not len(bad):
        assert np.isnan(auc(positive, scores))
        return
    wins = (good[:, None] > bad).mean() + (good[:, None] == bad).mean() / 2
    assert abs(auc(positive, scores) - wins) <= 1e-12


def test_auc_by_hand():
    # 3 > 2 and 3 > 1, 1 < 2, 1 = 1: (1 + 1 + 0 + 1/2) / 4
    assert auc(np.array([True, True, False, False]), np.array([3.0, 1.0, 2.0, 1.0])) == 0.625


def test_nearest_is_brute_force():
    rng = np.random.default_rng(1)
    table = rng.normal(size=(300, 7)).astype(np.float32)
    rows = np.arange(0, 300, 1)
    distance, dot = nearest(table, rows, 5)
    every = np.linalg.norm(table[:, None].astype(np.float64) - table[None], axis=2)
    np.fill_diagonal(every, np.inf)
    order = np.argsort(every, axis=1)[:, :5]
    assert np.abs(distance - np.take_along_axis(every, order, 1)).max() <= 1e-12
    assert np.abs(dot - np.take_along_axis(table.astype(np.float64) @ table.T, order, 1)).max() <= 1e-5


def test_word_bands_by_hand():
    # by frequency: word 2 at 0, word 0 at 3, word 3 at 4; word 1 never occurs and is nobody's neighbour
    table, counts = np.array([[3.0], [0.1], [0.0], [4.0]]), np.array([5, 0, 9, 2])
    (row,) = word_bands(table, counts)
    assert (row["ranks"], row["words"], row["sampled"]) == ("0-100", 3, 3)
    assert abs(row["norm"] - 7 / 3) <= 1e-6
    assert row["l2"] == dict.fromkeys(NEIGHBOURS)  # there are two others, and the least k is three
    rng = np.random.default_rng(2)
    bands = word_bands(rng.normal(size=(700, 4)), np.arange(700, 0, -1), sample=50)
    assert [(b["words"], b["sampled"]) for b in bands] == [(100, 50), (400, 50), (200, 50)]
    assert all(b["l2"][3] <= b["l2"][5] <= b["l2"][7] for b in bands)
    assert len(BANDS) == 4


def test_word_bands_see_frequent_words_near_the_origin():
    table = np.random.default_rng(3).normal(size=(600, 8)) * np.linspace(0.2, 2, 600)[:, None]
    first, second, third = word_bands(table, np.arange(600, 0, -1))
    assert first["norm"] < second["norm"] < third["norm"]
    assert first["l2"][3] < second["l2"][3] < third["l2"][3]


CURVES = {"bits": [(1.0, 2.0), (2.0, 1.5)]}


@pytest.mark.parametrize(
    "value",
    [
        [{"step": 1, "bits": 2.0}, {"step": 2, "bits": 1.5}],
        {"step": [1, 2], "bits": [2.0, 1.5]},
        {"schedule": {"lr": 1e-3}, "": [{"step": 1, "bits": 2.0, "note": "x"}, {"step": 2, "bits": 1.5}]},
    ],
)
def test_curves_are_found_in_either_form_and_nested(value):
    assert curves_in(value) == CURVES


def test_curves_keep_apart_what_is_named_apart_and_drop_what_is_no_number():
    rows = [{"step": 1, "a": 1, "b": None}, {"step": 2, "a": float("nan"), "b": 3}]
    assert curves_in({"flow": rows, "other": [1, 2]}) == {"flow.a": [(1.0, 1.0)], "flow.b": [(2.0, 3.0)]}


def test_curves_of_pairs_are_called_after_the_measure_beside_them():
    looks = [{"kept_step": 10, "steps": 14, "separability": 2.0, "history": [[0, 1.5], [10, 2.0], [14, None]]}]
    assert curves_in({"choice": {"looks": looks, "texts": 9}}) == {
        "choice.looks.separability": [(0.0, 1.5), (10.0, 2.0)]
    }
    assert stops_in({"choice": {"looks": looks, "chosen": "flow"}, "reasons": ["kept step 10"]}) == (
        {"choice.looks.kept_step": 10.0},
        ["kept step 10"],
    )
    assert curves_in([[1, 2.0], [2, 1.5]]) == {"value": CURVES["bits"]}
    assert curves_in({"layers": [1, 4], "empty": [], "rows": [["a", 1]]}) == {}


def test_stops_and_reasons_are_found_by_name():
    steps, why = stops_in(
        {"stopping": {"best_step": 40, "reason": "it rose"}, "schedule": {"save_steps": 500, "seed": 3}}
    )
    assert steps == {"stopping.best_step": 40.0}
    assert why == ["it rose"]
    assert stops_in({"chain": [{"stopped_at": 7}, {"kept": True}]})[0] == {"chain.stopped_at": 7.0}


def test_logs_are_read_as_json_lines_and_json(tmp_path):
    model = tmp_path / "m"
    model.mkdir()
    lines = model / "curve.jsonl"
    lines.write_text('{"step": 1, "bits": 2.0}\n\n{"step": 2, "bits": 1.5}\n')
    whole = tmp_path / "curve.json"
    whole.write_text(json.dumps({"step": [1, 2], "bits": [2.0, 1.5]}))
    assert read_log(lines) == read_log(whole) == CURVES
    assert logs_beside(model) == [lines]
    lines.write_text("{")
    with pytest.raises(FastflowError, match=r"curve\.jsonl is not JSON"):
        read_log(lines)


def test_logs_are_read_from_tensorboard(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with pytest.raises(FastflowError, match="no TensorBoard scalars"):
        read_log(tmp_path)
    writer = SummaryWriter(str(tmp_path))
    for step, bits in CURVES["bits"]:
        writer.add_scalar("bits", bits, int(step))
    writer.close()
    assert read_log(tmp_path) == CURVES


def test_labelled_pairs_are_read_and_checked(tmp_path):
    path = tmp_path / "q.tsv"
    path.write_text(f'{LABELLED}\nentailment\tIs "it"?\tIt is.\nnot_entailment\tWho?\tIt is.\n')
    pairs = read_labelled(path)
    assert (pairs.labels, pairs.first) == (["entailment", "not_entailment"], ['Is "it"?', "Who?"])
    calls = []

    def encode(texts):
        calls.append(list(texts))
        return np.eye(len(texts))

    assert similarities(encode, pairs).tolist() == [0, 0]
    assert calls == [['Is "it"?', "Who?", "It is."]]
    path.write_text(f"{LABELLED}\nentailment\tone\n")
    with pytest.raises(FastflowError, match=r"q\.tsv, line 2: must be label, sentence1, sentence2"):
        read_labelled(path)
