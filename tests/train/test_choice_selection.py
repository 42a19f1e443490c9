"""Which calibration ships: the best separated of those tried, or none, and the reasons given."""

import json
import types

import numpy as np
import pytest
from click.testing import CliRunner
from commands import make_train

from fastflow import Runtime
from fastflow.train import fitting
from fastflow.train.choice import selection
from fastflow.train.choice.selection import PLAIN, REFITTED, choose
from fastflow.train.choice.separability import Views
from fastflow.train.cli import main


def normal(rows, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dim))


def record(directory):
    return json.loads((directory / "fastflow.json").read_text())["training"]


def test_a_run_says_what_it_kept_and_why(train, tmp_path):
    result = train("--epochs", "8")
    assert result.exit_code == 0
    training = record(tmp_path / "m")
    (look,) = training["choice"]["looks"]
    values = dict(look["history"])
    assert sorted(values) == [0, 10, 14, 20, 28, 32]
    assert values[look["kept_step"]] == pytest.approx(max(values.values()), abs=1e-4)
    said = f"flow: kept step {look['kept_step']} of 32, where separability was largest: {look['separability']:.3f}"
    assert said in result.stderr
    assert said in (tmp_path / "m" / "README.md").read_text()
    assert training["separability"]["after"] == pytest.approx(look["separability"], abs=1e-3)
    assert training["separability"]["after"] > training["separability"]["before"]


def test_a_calibration_no_better_than_raw_is_refused(train, tmp_path, sentences):
    """The official start untrained: shifts and scales at random."""
    bad = ["--init", "glorot", "--lr", "1e-9", "--epochs", "0.01"]
    result = train(*bad)
    assert result.exit_code == 0
    assert "flow was REFUSED and raw pooling kept: its dropout views are no better separated (none " in result.stderr
    assert "--stop budget" in result.stderr
    assert record(tmp_path / "m")["choice"]["chosen"] == "none"
    assert "flow was REFUSED" in (tmp_path / "m" / "README.md").read_text()
    runtime = Runtime(tmp_path / "m", backend="reference")
    assert np.array_equal(runtime.encode(sentences[:8]), runtime.pool(sentences[:8]))
    assert train(*bad, "--stop", "budget", out=tmp_path / "all-the-same").exit_code == 0
    assert Runtime(tmp_path / "all-the-same").info()["calibration"] != "none"


@pytest.mark.parametrize(
    ("method", "values", "said"),
    [
        ("auto", {"none": 1.0, "standardize": 1.2, "whiten": 1.3}, [
            "auto chose standardize by the separability", "none 4.000, standardize 4.800, whiten 5.200);",
            "whiten needs more than 5.760, 1.2 times standardize, because whitening and flows raise this number",
        ]),
        ("auto", {"none": 1.0, "standardize": 1.005, "whiten": 1.1}, [
            "auto chose none", "standardize needs more than 4.040, 1 % above none, because a smaller gain may be",
            "whiten needs more than 4.848, 1.2 times the 4.040 that the other methods need",
        ]),
        ("whiten", {"none": 1.0, "whiten": 1.005}, [
            "whiten was REFUSED and raw pooling kept", "whiten 4.020; whiten needs more than 4.040, 1 % above none",
        ]),
        ("auto", {"none": 1.0, "standardize": 1.2, "whiten": 1.1}, ["auto chose standardize"]),
    ],
)  # fmt: skip
def test_a_larger_number_that_is_not_chosen_is_explained(monkeypatch, method, values, said):
    """Both numbers, the one reached and the one needed, with the reason; nothing where the largest is chosen."""
    monkeypatch.setattr(selection, "candidates", lambda weighted: tuple(name for name in values if name != "none"))
    monkeypatch.setattr(selection, "judge", lambda stages, views: 4.0 * values[stages])
    views = Views(normal(40, 8), normal(40, 8))
    monkeypatch.setattr(Views, "judge", lambda self: 4.0)
    reasons = choose(method, False, lambda name: types.SimpleNamespace(stages=name, looks=[]), views).reasons
    for part in said:
        assert part in reasons[-1]
    assert ("needs more than" in reasons[-1]) == (len(said) > 1)


def test_auto_is_the_default(bert, corpus, tmp_path):
    arguments = [corpus, "--encoder", bert, "--out", tmp_path / "m", "--dry-run"]
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0
    assert "auto: tries none, components:1\n" in result.stderr


def test_auto_with_token_weights_removes_a_component(train, tmp_path):
    result = train("--method", "auto")
    assert result.exit_code == 0
    assert list(record(tmp_path / "m")["choice"]["separability"]) == ["none", "components:1"]
    assert "auto chose components:1 by the separability of dropout views about their mean (none " in result.stderr
    assert "have to be" not in result.stderr
    alone = train("--method", "components:1", out=tmp_path / "alone")
    assert alone.exit_code == 0
    assert same_vectors(tmp_path / "m", tmp_path / "alone")


def same_vectors(*directories):
    first, second = (Runtime(directory, backend="reference").encode("A dog.") for directory in directories)
    return np.array_equal(first, second)


def test_auto_takes_the_best_separated(train, tmp_path):
    result = train("--method", "auto", "--token-weights", "none")
    assert result.exit_code == 0
    choice = record(tmp_path / "m")["choice"]
    values = choice["separability"]
    assert list(values) == ["none", *PLAIN]
    handicap = {"whiten": REFITTED, "flow": REFITTED}
    assert choice["chosen"] == max(values, key=lambda name: values[name] / handicap.get(name, 1))
    assert f"auto chose {choice['chosen']} by the separability of dropout views (none " in result.stderr
    assert f"auto chose {choice['chosen']}" in (tmp_path / "m" / "README.md").read_text()
    alone = train("--method", choice["chosen"], "--token-weights", "none", out=tmp_path / "alone")
    assert alone.exit_code == 0
    assert same_vectors(tmp_path / "m", tmp_path / "alone")


def test_auto_on_too_few_texts_leaves_out_what_they_cannot_fit(train, tmp_path, sentences):
    path = tmp_path / "few.txt"
    path.write_text("\n".join(sentences[:20]) + "\n")
    result = train("--method", "auto", "--token-weights", "none", source=path)
    assert result.exit_code == 0
    assert "whiten was left out: whiten: 20 texts span 19 of the 32 dimensions" in result.stderr
    assert "flow was left out: the corpus has 20 distinct texts, fewer than one batch" in result.stderr
    values = record(tmp_path / "m")["choice"]["separability"]
    assert (values["whiten"], values["flow"]) == (None, None)
    assert values[record(tmp_path / "m")["choice"]["chosen"]] >= values["none"]


def test_budget_takes_no_views(train, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("views were made")

    monkeypatch.setattr(fitting, "make_views", refuse)
    assert train("--stop", "budget").exit_code == 0
    assert "separability" not in record(tmp_path / "m")


@pytest.mark.whole
@pytest.mark.data
def test_over_training_is_not_shipped(shared_data, tmp_path):
    """STS13's own sentences for 16 epochs, every token alike: the rule is no worse than the last step and beats raw."""
    target = shared_data / "sts" / "STS13.tsv"
    encoder = shared_data / "models" / "mini-mlm-uncased"
    train = make_train(encoder, target, tmp_path)
    after = {}
    for stop in ("rule", "budget"):
        alike = ("--token-weights", "none")
        assert train("--epochs", 16, "--stop", stop, "--eval", target, *alike, out=tmp_path / stop).exit_code == 0
        spearman = record(tmp_path / stop)["spearman"]
        after[stop] = spearman["after"]["average"]["all"]
    assert after["rule"] > spearman["before"]["average"]["all"] + 3
    assert after["rule"] >= after["budget"]
