"""Several models on the same tasks: paired intervals, the best marked."""

import json

import numpy as np
import pytest

from fastflow.evaluation.analyses import DRAWS, interval_of, mean_of
from fastflow.evaluation.compare import compare, format_rows, measure_all
from fastflow.evaluation.evaluate import SEVEN, Pairs, evaluate, find_tasks

from support.tasks import retrieval


class Encoder:
    """Cosines of the pairs (i, j): the angle between them."""

    def __init__(self, angles):
        self.angles = angles

    def encode(self, texts):
        return np.array([[np.cos(self.angles[int(text)]), np.sin(self.angles[int(text)])] for text in texts])


def make_pairs(name="set", n=60):
    first, second = [str(i) for i in range(n)], [str(i + n) for i in range(n)]
    return Pairs(name, ["s"] * n, np.arange(n, dtype=float), first, second)


def make_encoder(n, noise, seed):
    gaps = (n - np.arange(n)) / n + noise * np.random.default_rng(seed).normal(size=n)
    return Encoder(np.concatenate([np.zeros(n), gaps]))


def test_the_values_are_those_of_eval_and_the_lead_is_paired():
    pairs, good, poor = make_pairs(), make_encoder(60, 0.05, 1), make_encoder(60, 0.4, 1)
    (row,) = compare({name: measure_all(model, [pairs]) for name, model in (("a", poor), ("b", good))})
    for name, model in (("a", poor), ("b", good)):
        assert row["values"][name] == evaluate(model.encode, [pairs])["rows"][0]["all"]
    assert (row["set"], row["measure"], row["best"]) == ("set", "all", ["b"])
    (value, drawn), (other, others) = (measure_all(m, [pairs])["set", "all"] for m in (good, poor))
    assert row["leads"] == {"a": [round(end, 2) for end in interval_of(drawn - others, value - other)]}
    unpaired = interval_of(drawn - np.roll(others, 1), value - other)
    low, high = row["leads"]["a"]
    assert high - low < 0.98 * (unpaired[1] - unpaired[0]), "the same pairs are drawn for both"


def test_equal_models_share_the_star_and_other_sets_of_one_table(tmp_path):
    encoder = make_encoder(60, 0.2, 3)
    found = measure_all(encoder, [make_pairs("one"), make_pairs("two")])
    rows = compare({"a": found, "b": found})
    assert [(row["set"], row["best"], row["leads"]) for row in rows] == [
        (name, ["a", "b"], {}) for name in ("one", "two", "mean of 2")
    ]
    assert format_rows(rows).splitlines()[1].count("*") == 2
    every = measure_all(encoder, [make_pairs(name) for name in (*SEVEN, "mine")])
    assert ("mean of 7", "all") in every, "as eval averages"


def test_a_value_that_is_undefined_is_never_the_best():
    constant = Encoder(np.zeros(120))
    (row,) = compare(
        {"flat": measure_all(constant, [make_pairs()]), "good": measure_all(make_encoder(60, 0.1, 0), [make_pairs()])}
    )
    assert row["best"] == ["good"]
    assert "nan" in format_rows([row])


def test_draws_of_a_measure_are_repeated_and_centred():
    measure = mean_of(np.random.default_rng(0).random(50))
    assert measure.draws().shape == (DRAWS,)
    assert np.array_equal(measure.draws(), measure.draws())
    assert abs(measure.draws().mean() - measure.value) < 1


def test_the_command_compares_and_writes_json(run, tmp_path, monkeypatch):
    from support.places import ROOT

    pairs, task = (
        ROOT / "examples" / "pairs.tsv",
        retrieval(tmp_path / "task", ["a\t-\tA refund.", "b\t-\tA dog."], ["q\tmoney"], ["q\ta\t1"]),
    )
    done = run("eval", pairs, task, "-m", "default", "-m", "static")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["set", "measure", "default", "static"]
    assert lines[1].split()[0] == "pairs"
    assert lines[-1].startswith("*: the best.")
    found = json.loads(run("eval", pairs, task, "-m", "default", "-m", "static", "--json").stdout)
    assert list(found["models"]) == ["default", "static"]
    alone = json.loads(run("eval", pairs, "-m", "static", "--json").stdout)
    assert found["rows"][0]["values"]["static"] == alone["rows"][0]["all"]
    assert found["models"]["static"] == alone["fingerprint"]
    assert "-m names a model twice" in run("eval", pairs, "-m", "static", "-m", "static", code=2).stderr
    monkeypatch.setenv("FASTFLOW_MODEL", "static")
    assert json.loads(run("eval", pairs, "--json").stdout)["rows"] == alone["rows"]
    assert len(find_tasks([pairs])) == 1


@pytest.fixture
def run():
    from click.testing import CliRunner

    from fastflow.cli import main

    def call(*arguments, code=0):
        done = CliRunner().invoke(main, [str(each) for each in arguments])
        assert done.exit_code == code, done.output
        return done

    return call
