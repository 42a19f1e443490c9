"""The label-free rule: what it measures, when it looks, what it keeps, and that training ships what it says."""

import dataclasses
import json
import types

import numpy as np
import pytest
import torch
from builders import make_encoder
from click.testing import CliRunner
from commands import make_train
from loops import CONFIG, SCHEDULE, Interruption, X, interrupt_at, same

from fastflow import Runtime
from fastflow.train import fitting
from fastflow.train.choice import selection
from fastflow.train.choice.selection import PLAIN, REFITTED, choose
from fastflow.train.choice.separability import Keeper, Views, due, make_views, separability
from fastflow.train.cli import main
from fastflow.train.data.embeddings import open_encoder
from fastflow.train.methods.against import fit_named
from fastflow.train.methods.chain import Fitted
from fastflow.train.methods.loop import fit_flow


@pytest.fixture
def train(bert, corpus, tmp_path):
    return make_train(bert, corpus, tmp_path)


def normal(rows, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dim))


@pytest.mark.parametrize("dim", [16, 64, 256])
def test_identical_views_of_isotropic_texts(dim):
    """Random directions have cosines of deviation 1/sqrt(D), and a view has cosine 1 with itself."""
    x = normal(600, dim)
    assert separability(x, x) == pytest.approx(np.sqrt(dim), rel=0.05)
    scales = np.random.default_rng(1).uniform(0.1, 10, size=(600, 1))
    assert separability(x * scales, x) == pytest.approx(separability(x, x), rel=1e-9)


def test_unrelated_views_are_not_separated():
    assert abs(separability(normal(600, 32), normal(600, 32, 1))) <= 0.2


def test_noise_and_a_narrow_cone_lower_it():
    x = normal(600, 32)
    clean, noisy = separability(x, x + 0.3 * normal(600, 32, 1)), separability(x, x + 1.0 * normal(600, 32, 1))
    stretched = x * np.r_[np.full(3, 6.0), np.ones(29)]
    assert noisy < clean < separability(x, x)
    assert separability(stretched, stretched) < 0.6 * separability(x, x)


def test_views_about_their_mean():
    """A mean that is kept hides from cosines what a calibration did to the texts."""
    first, second = normal(200, 16), normal(200, 16) + 0.5 * normal(200, 16, 1)
    moved = Views(first + 5, second + 5)
    assert moved.about_mean().judge() == pytest.approx(Views(first, second).judge(), rel=0.02)
    assert moved.about_mean().judge() > 1.2 * moved.judge()
    assert np.abs(sum(view.mean(axis=0) for view in vars(moved.about_mean()).values())).max() <= 1e-12


@pytest.mark.parametrize(("method", "about"), [("components:1", True), ("nullspace:1", False), ("standardize", False)])
def test_what_keeps_the_mean_is_judged_about_it_and_so_is_raw_pooling(method, about):
    x = normal(300, 16) * np.r_[6, np.ones(15)] + 9
    views = Views(*(x + 0.3 * normal(300, 16, seed) for seed in (1, 2)))
    choice = choose(method, True, lambda name: Fitted(fit_named(name, x)), views)
    expected = views.about_mean() if about else views
    assert choice.method == method
    assert choice.record["separability"]["none"] == round(expected.judge(), 4)
    assert np.array_equal(choice.views.first, expected.first)
    assert choice.record["separability"][method] > 1.5 * choice.record["separability"]["none"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(bad):
    x = normal(10, 4)
    x[3, 2] = bad
    assert np.isnan(separability(x, normal(10, 4)))
    assert np.isnan(separability(normal(10, 4), x))


def test_when_to_look():
    looks = [step for step in range(1001) if due(step, 1000)]
    assert looks == [0, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 448, 640, 896, 1000]
    assert [step for step in range(4) if due(step, 3)] == [0, 3]
    assert sum(due(step, 100_000) for step in range(100_001)) <= 30


def test_views_are_noise_that_can_be_repeated(bert, sentences):
    encoder = open_encoder(str(bert), "first-last", 32)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    views = make_views(sentences, encoder)
    assert torch.equal(torch.rand(4), expected)
    again, other = make_views(sentences, encoder), make_views(sentences, encoder, seed=1)
    assert np.array_equal(views.first, again.first)
    assert np.array_equal(views.second, again.second)
    assert not np.array_equal(views.first, views.second)
    assert not np.array_equal(views.first, other.first)
    assert views.first.shape == (256, 32)


def test_an_encoder_without_dropout_in_its_configuration_gets_some(tmp_path, sentences):
    directory = make_encoder(tmp_path / "e", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    views = make_views(sentences, open_encoder(str(directory), "first-last", 32))
    assert np.abs(views.first - views.second).min(axis=1).max() > 1e-4


def peaked(best):
    """A measure that is largest at the look number ``best``."""
    looks = iter(range(100))
    return lambda flow: -abs(next(looks) - best)


@pytest.mark.parametrize(("look", "step"), [(0, 0), (1, 10), (2, 14), (3, 15)])
def test_the_flow_of_the_best_look_comes_back(look, step):
    """It is the flow that a budget of just that many steps gives (15 is the whole)."""
    keeper = Keeper(peaked(look))
    kept = fit_flow(X.__getitem__, 100, CONFIG, SCHEDULE, keeper=keeper)
    assert (keeper.step, [done for done, _ in keeper.history]) == (step, [0, 10, 14, 15])
    if step:
        budget = dataclasses.replace(SCHEDULE, epochs=step / 5)
        assert same(kept.state_dict(), fit_flow(X.__getitem__, 100, CONFIG, budget).state_dict())
    assert not kept.training


def test_what_is_not_finite_is_never_kept():
    values = iter([1.0, float("nan"), 0.5, float("nan")])
    keeper = Keeper(lambda flow: next(values))
    fit_flow(X.__getitem__, 100, CONFIG, SCHEDULE, keeper=keeper)
    assert (keeper.step, keeper.value) == (0, 1.0)
    assert [value for _, value in keeper.record()["history"]] == [1.0, None, 0.5, None]


@pytest.mark.parametrize("stop", [9, 11, 13])
def test_resume_keeps_what_was_kept(tmp_path, stop):
    path = tmp_path / "c.safetensors"
    size = lambda flow: float(flow.levels[0][0].actnorm.shift[0].detach())  # noqa: E731 - any function of the weights

    def run(**options):
        keeper = Keeper(lambda flow: -abs(size(flow) - target))
        flow = fit_flow(X.__getitem__, 100, CONFIG, SCHEDULE, keeper=keeper, **options)
        return keeper, flow.state_dict()

    middle = fit_flow(X.__getitem__, 100, CONFIG, dataclasses.replace(SCHEDULE, epochs=2))
    target = size(middle)
    keeper, whole = run()
    assert keeper.step == 10
    with pytest.raises(Interruption):
        run(checkpoint=path, log=interrupt_at(stop))
    resumed, weights = run(checkpoint=path, resume=True)
    assert resumed.history == keeper.history
    assert same(whole, weights)


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
