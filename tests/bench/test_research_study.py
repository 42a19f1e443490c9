"""The study's signals, rules and list of runs."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from fastflow.bench.research.study import Run, closed_form, read, runs
from fastflow.bench.research.study_data import CONFIRM, FIT, word_views
from fastflow.bench.research.study_page import LAST, pair, regrets, rules, score, stopped, trajectories
from fastflow.bench.research.study_signals import views
from fastflow.evaluation.evaluate import SEVEN
from fastflow.stages.calibration import apply
from fastflow.train.choice.separability import separability


def look(step, signal, value, group="collapse", key="a", sets=SEVEN):
    scores = {name: [value, value + 2] for name in sets}
    return {"group": group, "key": key, "step": step, "signals": {"s": signal, "t": -signal}, "spearman": scores}


RUN = [look(0, 1.0, 50), look(10, 3.0, 58), look(20, 2.0, 60), look(40, 1.5, 55)]


def test_a_rule_stops_where_its_signal_is_largest():
    assert [stopped(RUN, name)["step"] for name in ("s", "t", LAST)] == [10, 0, 40]


def test_the_loss_is_against_the_best_look():
    assert regrets([RUN], "s", FIT) == [2.0]
    assert regrets([RUN], "t", CONFIRM) == [10.0]
    other = [look(0, 1.0, 40, sets=FIT[:1]), look(10, 0.0, 41, sets=FIT[:1])]
    assert regrets([RUN, other], LAST, FIT) == [5.0, 0.0]
    assert regrets([other], LAST, CONFIRM) == []


def test_rules_are_ranked_on_the_fitting_sets():
    good = [look(0, 1.0, 50), look(10, 0.0, 40)]
    for name in CONFIRM:  # there the order is the other way round
        good[0]["spearman"][name], good[1]["spearman"][name] = [0, 0], [90, 90]
    ranked = rules({"a": good})
    assert [row["signal"] for row in ranked if row["fit"][0] == 0] == ["s"]
    assert ranked[0]["confirm"][0] == 90


def test_lines_are_sorted_into_runs():
    lines = [look(0, 1.0, 1), look(0, 1.0, 1, key="b"), look(0, 1.0, 1, group="closed"), look(10, 1.0, 1)]
    lines.append({"group": "collapse", "key": "c", "failed": "why"})
    assert {key: len(run) for key, run in trajectories(lines, "collapse").items()} == {"a": 2, "b": 1}


def test_scores():
    assert score(RUN[0], FIT) == 51
    assert np.isnan(score(look(0, 0, 0, sets=FIT), CONFIRM))
    assert pair([RUN[0]], FIT) == "50.0 / 52.0"
    assert pair(RUN[:2], FIT) == "54.0±5.7 / 56.0±5.7"


def test_every_run_has_its_own_key():
    keys = [run.key for run in set_of_runs()]
    assert len(keys) > 300
    assert len(set(keys)) == len(keys)
    assert Run("a", "b").key != Run("a", "b", pooling="@sif").key


def set_of_runs():
    return {run.key: run for run in runs()}.values()


def test_a_line_leads_back_to_its_run(tmp_path):
    some = [run for i, run in enumerate(set_of_runs()) if i % 40 == 0]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(asdict(run) | {"step": 0}) + "\n" for run in some))
    assert [line["key"] for line in read(path)] == [run.key for run in some]


def test_all_variants_have_five_seeds():
    seeds = {}
    for run in set_of_runs():
        if run.group == "beyond":
            settings = (run.corpus, run.before, run.init, run.noise, run.pooling, tuple(run.shape.items()))
            seeds.setdefault(settings, set()).add(run.seed)
    assert set(map(len, seeds.values())) == {5}


def test_signals_of_views():
    x = np.random.default_rng(0).normal(size=(200, 16))
    y = x + 0.2 * np.random.default_rng(1).normal(size=x.shape)
    got = views(x, y)
    assert got["separability"] == pytest.approx(separability(x, y), rel=1e-9)
    same = views(x, x)
    assert (same["top1"], same["neighbours"]) == (1.0, 1.0)
    assert (same["alignment"], same["stability"]) == (pytest.approx(1), pytest.approx(1))
    assert all(got[name] <= same[name] for name in got if name != "uniformity")
    cone = views(x + 5, y + 5)
    assert cone["uniformity"] < got["uniformity"]


def test_word_views():
    texts = ["one two three four five six seven", "a b c d e f"]
    made = word_views(texts)
    assert made["half"] == (["one two three", "a b c"], ["four five six seven", "d e f"])
    for side in made["del"]:
        for kept, text in zip(side, texts, strict=True):
            assert 1 <= len(kept.split()) <= len(text.split())
            assert [word for word in text.split() if word in kept.split()] == kept.split()
    assert made["del"][0] != made["del"][1]


@pytest.mark.parametrize(("method", "dims"), [("none", 8), ("standardize", 8), ("nullspace:2", 8), ("whiten:3", 3)])
def test_closed_forms(method, dims):
    x = np.random.default_rng(0).normal(size=(60, 8)) + 3
    z = apply(closed_form(method, x), x)
    assert z.shape == (60, dims)
    assert (np.abs(z.mean(axis=0)).max() <= 1e-9) == (method != "none")
