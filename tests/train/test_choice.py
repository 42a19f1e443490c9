"""Choosing by dropout views, and by held-out likelihood."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from fastflow import Runtime
from fastflow.errors import CannotFit, FastflowError, UsageError
from fastflow.train.choice import selection
from fastflow.train.choice.held_out import MOST, PART, HeldOut, count_held_out, explain_stop, split
from fastflow.train.choice.selection import AUTO, AUTO_STREAMED, choose, judge
from fastflow.train.choice.separability import MARGIN, Keeper, Views, is_due, make_views, measure_separability
from fastflow.train.data.encoder import open_encoder
from fastflow.train.fits import fitting
from fastflow.train.methods.against import fit_named
from fastflow.train.methods.chain import Fitted, fit_chain
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.loop import Training, fit_flow
from fastflow.train.methods.names import parse_method
from fastflow.train.options import COLOURS

from support.builders import LAYERED, make_encoder
from support.commands import interrupted, make_train
from support.loops import CONFIG, SCHEDULE, Interruption, X, interrupt_at, same


def normal(rows, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dim))


def read_training(directory):
    return json.loads((directory / "fastflow.json").read_text())["training"]


@pytest.mark.slow
def test_a_run_says_what_it_kept_and_why(train, tmp_path):
    result = train("--epochs", "8", "--batch-size", "64")
    assert result.exit_code == 0
    training = read_training(tmp_path / "m")
    (look,) = training["choice"]["looks"]
    values = dict(look["history"])
    assert sorted(values) == [0, 10, 14, 20, 28, 32]
    assert values[look["kept_step"]] == pytest.approx(max(values.values()), abs=1e-4)
    said = f"flow: kept step {look['kept_step']} of 32, where its latent best separates two dropout views"
    assert said in result.stderr
    assert said in (tmp_path / "m" / "README.md").read_text()
    values = training["choice"]["separability"]
    assert values["flow"] > (1 + MARGIN) * values["none"]
    said = f"separability of dropout views about their mean: none {values['none']:.3f}, flow {values['flow']:.3f}"
    assert said in result.stderr
    assert "auto" not in result.stderr


@pytest.mark.slow
def test_a_calibration_no_better_than_raw_is_refused(train, tmp_path, sentences):
    bad = ["--init", "glorot", "--lr", "1e-9", "--epochs", "0.01", "--demoted", "4"]
    result = train(*bad)
    assert result.exit_code == 0
    assert (
        "flow was REFUSED and the pooling kept as it is: its dropout views are no better separated about their mean "
        in (result.stderr)
    )
    assert "--stop budget" in result.stderr
    assert read_training(tmp_path / "m")["choice"]["chosen"] == "none"
    assert "flow was REFUSED" in (tmp_path / "m" / "README.md").read_text()
    runtime = Runtime(tmp_path / "m", backend="reference")
    assert np.array_equal(runtime.encode(sentences[:8]), runtime.pool(sentences[:8]))
    assert train(*bad, "--stop", "budget", out=tmp_path / "all-the-same").exit_code == 0
    assert Runtime(tmp_path / "all-the-same").info()["calibration"] != "none"


@pytest.mark.slow
def test_the_latent_is_judged_as_it_is_and_its_look_is_its_separability(train, tmp_path):
    assert train("--latent", "--epochs", "8").exit_code == 0
    training = read_training(tmp_path / "m")
    (look,) = training["choice"]["looks"]
    assert training["separability"]["after"] == pytest.approx(look["separability"], abs=1e-3)
    assert training["separability"]["after"] > training["separability"]["before"]
    values = training["choice"]["separability"]
    assert [values["none"], values["flow"]] == [training["separability"][when] for when in ("before", "after")]


REFUSED = (
    "whiten was REFUSED and the pooling kept as it is: its dropout views are no better separated (none 4.000, whiten "
)
WITH_AUTO = "auto keeps the pooling as it is: whiten was refused, its dropout views are no better separated "
WITH_AUTO += "(none 4.000, whiten "
CHANCE = "; it needs more than 4.040, because a smaller gain may be chance)"
REMEDY = ", so it would fit the encoder's noise; give more text or more varied text, or keep it with --stop budget"


@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize(
    ("value", "kept", "why"),
    [(5.2, True, ""), (4.05, True, ""), (4.03, False, CHANCE), (3.9, False, ")"), (np.nan, False, None)],
)
def test_a_method_needs_a_gain_that_is_no_chance(monkeypatch, value, kept, why, automatic):
    stages = fit_named("whiten", x := normal(40, 8))
    fitted, views = Fitted(stages), Views(x, normal(40, 8, 1))
    monkeypatch.setattr(selection, "judge", lambda stages, views: value)
    monkeypatch.setattr(Views, "judge", lambda self, calibrate=None, centred=False: 4.0)
    asked = []
    choice = choose("whiten", lambda name: asked.append(name) or fitted, views, automatic)
    assert asked == ["whiten"]  # one method is fitted, once
    assert (choice.method, choice.fitted.stages) == (("whiten", stages) if kept else ("none", []))
    assert choice.record["chosen"] == choice.method
    assert list(choice.record["separability"]) == ["none", "whiten"]
    (reason,) = choice.reasons
    if kept:
        chose = "auto chose whiten: " if automatic else ""
        assert reason == f"{chose}separability of dropout views: none 4.000, whiten {value:.3f}"
    elif why is None:
        assert reason.startswith((WITH_AUTO if automatic else REFUSED).partition(": ")[0])
    else:
        assert reason == (f"{WITH_AUTO}{value:.3f}{why}" if automatic else f"{REFUSED}{value:.3f}{why}{REMEDY}")


def test_what_is_judged_are_the_stages_in_float64():
    x = normal(200, 8) * np.geomspace(5, 0.2, 8)
    views = Views(x + 0.1 * normal(200, 8, 1), x + 0.1 * normal(200, 8, 2))
    (stage,) = fit_named("whiten", x)
    expected = views.judge(lambda side: (side - stage.params["mean"]) @ stage.params["matrix"])
    assert judge([stage], views) == pytest.approx(expected, rel=1e-12)
    assert judge([], views) == views.judge(centred=True)  # a pooling without calibration keeps its mean


def test_recolour_that_gives_back_a_mean_is_judged_about_it():
    x = normal(300, 16) * np.geomspace(5, 0.2, 16) + 9
    views = Views(*(x + 0.1 * normal(300, 16, seed) for seed in (1, 2)))
    for colour, about in ((COLOURS["sif"], True), (COLOURS["none"], False)):
        fitted = fit_chain(parse_method("whiten,recolour"), x, {}, Training(), colour)
        choice = choose("whiten,recolour", lambda name, fitted=fitted: fitted, views)
        assert choice.record["separability"]["none"] == round(views.judge(centred=about), 4)
        assert ("about their mean" in choice.reasons[-1]) == about


def failing(error):
    def fit_chain(name):
        raise error

    return fit_chain


def test_a_corpus_that_auto_cannot_be_fitted_to_keeps_the_pooling_and_says_why():
    views = Views(normal(40, 8), normal(40, 8, 1))
    error = CannotFit("whiten: 3 texts span 2 of the 8 dimensions")
    choice = choose("whiten", failing(error), views, automatic=True)
    assert (choice.method, choice.fitted.stages) == ("none", [])
    assert choice.record["separability"] == {"none": round(views.judge(), 4), "whiten": None}
    assert choice.reasons == [f"auto keeps the pooling as it is: whiten cannot be fitted, because {error}"]
    with pytest.raises(CannotFit, match="3 texts span 2"):
        choose("whiten", failing(error), views)


@pytest.mark.parametrize("error", [FastflowError("no space left"), UsageError("another corpus"), ValueError("a bug")])
def test_a_failure_that_is_not_of_the_corpus_is_never_a_reason_to_keep_the_pooling(error):
    with pytest.raises(type(error), match=str(error)):
        choose("flow", failing(error), Views(normal(40, 8), normal(40, 8, 1)), automatic=True)


@pytest.mark.slow
def test_auto_fails_if_its_checkpoint_is_of_another_run(train, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "FEWEST", 256)
    options = ("--method", "auto", "--save-steps", "2")
    interrupted(train, monkeypatch, 3, *options)
    refused = train(*options, "--resume", "--lr", "5e-4")
    assert (refused.exit_code, "another corpus, encoder or settings" in refused.stderr) == (2, True)
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(), ("--token-weights", "none")])
def test_auto_is_a_flow_with_recolour_behind_it(train, tmp_path, monkeypatch, weights):
    monkeypatch.setattr(fitting, "FEWEST", 256)
    colour = ("--spectrum", "0.5", "--demoted", "0")
    result = train("--method", "auto", *colour, *weights)
    assert result.exit_code == 0, result.stderr
    training = read_training(tmp_path / "m")
    assert (training["method"], training["choice"]["chosen"]) == ("auto", AUTO)
    about = "" if weights else " about their mean"
    assert f"auto chose flow: separability of dropout views{about}: none " in result.stderr
    assert "auto chose flow: " in (tmp_path / "m" / "README.md").read_text()
    share = 0 if weights else 0.1
    assert f"-> recolour(spectrum 0.5, mean share {share}, 0 demoted)" in result.stderr
    assert train("--method", "flow", *colour, *weights, out=tmp_path / "alone").exit_code == 0
    assert same_vectors(tmp_path / "m", tmp_path / "alone")


@pytest.mark.slow
def test_auto_that_is_refused_says_so_and_keeps_the_weights(train, tmp_path, sentences, monkeypatch):
    """At this spectrum random weights leave nothing to gain."""
    monkeypatch.setattr(fitting, "FEWEST", 256)
    colour = ("--spectrum", "0.4", "--mean-share", "0.2", "--demoted", "2")
    result = train("--method", "auto", "--pooling", LAYERED, *colour)
    assert result.exit_code == 0, result.stderr
    assert "auto keeps the pooling as it is: flow was refused, its dropout views are no better separated" in (
        result.stderr
    )
    assert "REFUSED" not in result.stderr  # nobody asked for it by name
    assert read_training(tmp_path / "m")["choice"]["chosen"] == "none"
    runtime = Runtime(tmp_path / "m", backend="reference")
    assert runtime.info()["pooling"] == "weighted masked mean of layers 0, 1 and 3"
    assert np.array_equal(runtime.encode(sentences[:8]), runtime.pool(sentences[:8]))


@pytest.mark.slow
def test_auto_streamed_is_the_closed_form(train, tmp_path):
    usual = ("--token-weights", "none", "--demoted", "0")  # of 32 dimensions of noise two are many
    result = train("--method", "auto", "--stream", *usual)
    assert result.exit_code == 0, result.stderr
    training = read_training(tmp_path / "m")
    assert list(training["choice"]["separability"]) == ["none", AUTO_STREAMED]
    assert (training["streamed"], training["choice"]["looks"]) == (True, [])
    assert training["choice"]["chosen"] == AUTO_STREAMED
    assert "auto chose whiten,recolour: separability of dropout views: none " in result.stderr
    options = ("--method", AUTO_STREAMED, "--stream", *usual)
    assert train(*options, out=tmp_path / "alone").exit_code == 0
    assert same_vectors(tmp_path / "m", tmp_path / "alone")


@pytest.mark.slow
def test_auto_streamed_on_too_few_texts_says_what_they_lack(train, tmp_path, sentences):
    path = tmp_path / "few.txt"
    path.write_text("\n".join(sentences[:20]) + "\n")
    result = train("--method", "auto", "--stream", source=path)
    assert result.exit_code == 0, result.stderr
    assert (
        "auto keeps the pooling as it is: whiten,recolour cannot be fitted, because whiten: 20 texts span 19 of the 32 "
        "dimensions"
    ) in result.stderr
    values = read_training(tmp_path / "m")["choice"]["separability"]
    assert (values[AUTO_STREAMED], read_training(tmp_path / "m")["choice"]["chosen"]) == (None, "none")


def same_vectors(*directories):
    first, second = (Runtime(directory, backend="reference").encode("A dog.") for directory in directories)
    return np.array_equal(first, second)


@pytest.mark.slow
def test_budget_takes_no_views(train, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("views were made")

    monkeypatch.setattr(fitting, "make_views", refuse)
    assert train("--stop", "budget").exit_code == 0
    assert "separability" not in read_training(tmp_path / "m")


@pytest.mark.whole
@pytest.mark.data
def test_over_training_is_not_shipped(shared_data, tmp_path):
    """STS13 itself, 16 epochs, equal token weights, on layers: the rule is no worse than the last step and beats raw.

    On words alone with equal weights it keeps an early step, 3 points below the last one.
    """
    target = shared_data / "sts" / "STS13.tsv"
    train = make_train(shared_data / "models" / "mini-mlm-uncased", target, tmp_path)
    options = ("--epochs", 16, "--eval", target, "--token-weights", "none", "--pooling", "embedding-first-last")
    after = {}
    for stop in ("rule", "budget"):
        assert train(*options, "--stop", stop, out=tmp_path / stop).exit_code == 0
        spearman = read_training(tmp_path / stop)["spearman"]
        after[stop] = spearman["after"]["average"]["all"]
    assert after["rule"] > spearman["before"]["average"]["all"] + 3
    assert after["rule"] >= after["budget"] - 0.2  # two fits on two processors differ by 0.1


@pytest.mark.parametrize("dim", [16, 64, 256])
def test_identical_views_of_isotropic_texts(dim):
    """Random directions have cosines of deviation 1/sqrt(D), and a view has cosine 1 with itself."""
    x = normal(600, dim)
    assert measure_separability(x, x) == pytest.approx(np.sqrt(dim), rel=0.05)
    scales = np.random.default_rng(1).uniform(0.1, 10, size=(600, 1))
    assert measure_separability(x * scales, x) == pytest.approx(measure_separability(x, x), rel=1e-9)


def test_unrelated_views_are_not_separated():
    assert abs(measure_separability(normal(600, 32), normal(600, 32, 1))) <= 0.2


def test_noise_and_a_narrow_cone_lower_it():
    x = normal(600, 32)
    clean, noisy = (
        measure_separability(x, x + 0.3 * normal(600, 32, 1)),
        measure_separability(x, x + 1.0 * normal(600, 32, 1)),
    )
    stretched = x * np.r_[np.full(3, 6.0), np.ones(29)]
    assert noisy < clean < measure_separability(x, x)
    assert measure_separability(stretched, stretched) < 0.6 * measure_separability(x, x)


def test_views_about_their_mean():
    first, second = normal(200, 16), normal(200, 16) + 0.5 * normal(200, 16, 1)
    moved = Views(first + 5, second + 5)
    assert moved.judge(centred=True) == pytest.approx(Views(first, second).judge(), rel=0.02)
    assert moved.judge(centred=True) > 1.2 * moved.judge()
    assert moved.judge(lambda side: side + 7.0, centred=True) == pytest.approx(moved.judge(centred=True), rel=1e-9)
    mean = (moved.first.mean(axis=0) + moved.second.mean(axis=0)) / 2  # one for both sides
    assert moved.judge(centred=True) == measure_separability(moved.first - mean, moved.second - mean)


@pytest.mark.parametrize(("method", "about"), [("components:1", True), ("nullspace:1", False), ("standardize", False)])
def test_what_keeps_the_mean_is_judged_about_it_and_so_is_raw_pooling(method, about):
    x = normal(300, 16) * np.r_[6, np.ones(15)] + 9
    views = Views(*(x + 0.3 * normal(300, 16, seed) for seed in (1, 2)))
    choice = choose(method, lambda name: Fitted(fit_named(name, x)), views)
    assert choice.method == method
    assert (
        choice.record["separability"]["none"]
        == round(views.judge(centred=about), 4)
        != round(views.judge(centred=not about), 4)
    )
    assert ("about their mean" in choice.reasons[-1]) == about
    assert choice.views is views
    assert choice.record["separability"][method] > 1.5 * choice.record["separability"]["none"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(bad):
    x = normal(10, 4)
    x[3, 2] = bad
    assert np.isnan(measure_separability(x, normal(10, 4)))
    assert np.isnan(measure_separability(normal(10, 4), x))


@pytest.mark.slow
def test_when_to_look():
    looks = [step for step in range(1001) if is_due(step, 1000)]
    assert looks == [0, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 448, 640, 896, 1000]
    assert [step for step in range(4) if is_due(step, 3)] == [0, 3]
    assert sum(is_due(step, 100_000) for step in range(100_001)) <= 30


@pytest.mark.slow
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


def make_peak(best):
    looks = iter(range(100))
    return lambda flow: -abs(next(looks) - best)


@pytest.mark.slow
@pytest.mark.parametrize(("look", "step"), [(0, 0), (1, 10), (2, 14), (3, 15)])
def test_the_flow_of_the_best_look_comes_back(look, step):
    keeper = Keeper(make_peak(look))
    kept = fit_flow(X.__getitem__, 100, CONFIG, Training(SCHEDULE), keeper=keeper)
    assert (keeper.step, [done for done, _ in keeper.history]) == (step, [0, 10, 14, 15])
    if step:
        budget = dataclasses.replace(SCHEDULE, epochs=step / 5)
        assert same(kept.state_dict(), fit_flow(X.__getitem__, 100, CONFIG, Training(budget)).state_dict())
    assert not kept.training


def test_what_is_not_finite_is_never_kept():
    values = iter([1.0, float("nan"), 0.5, float("nan")])
    keeper = Keeper(lambda flow: next(values))
    fit_flow(X.__getitem__, 100, CONFIG, Training(SCHEDULE), keeper=keeper)
    assert (keeper.step, keeper.value) == (0, 1.0)
    assert [value for _, value in keeper.record()["history"]] == [1.0, None, 0.5, None]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [9, 11, 13])
def test_resume_keeps_what_was_kept(tmp_path, stop):
    path = tmp_path / "c.safetensors"
    size = lambda flow: float(flow.levels[0][0].actnorm.shift[0].detach())  # noqa: E731 - any function of the weights

    def run(checkpoint=None, **options):
        keeper = Keeper(lambda flow: -abs(size(flow) - target))
        flow = fit_flow(X.__getitem__, 100, CONFIG, Training(SCHEDULE, **options), checkpoint, keeper)
        return keeper, flow.state_dict()

    middle = fit_flow(X.__getitem__, 100, CONFIG, Training(dataclasses.replace(SCHEDULE, epochs=2)))
    target = size(middle)
    keeper, whole = run()
    assert keeper.step == 10
    with pytest.raises(Interruption):
        run(checkpoint=path, log=interrupt_at(stop))
    resumed, weights = run(checkpoint=path, resume=True)
    assert resumed.history == keeper.history
    assert same(whole, weights)


@pytest.mark.parametrize(("count", "kept"), [(2, 1), (PART, 1), (10 * PART, 10), (10**7, MOST)])
def test_one_in_so_many_is_held_out(count, kept):
    assert count_held_out(count) == kept


def test_a_split_takes_every_row_once_and_follows_the_seed():
    train, out = split(205, 7)
    assert len(out) == count_held_out(205)
    assert sorted([*train, *out]) == list(range(205))
    assert (np.diff(train) > 0).all()
    assert (np.diff(out) > 0).all()
    assert np.array_equal(split(205, 7)[1], out)
    assert not np.array_equal(split(205, 8)[1], out)


def test_the_measure_is_the_mean_log_likelihood_in_bits():
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    flow = Flow(FlowConfig(8, 1, 1, 4))
    measured = HeldOut(x.numpy()).make_measure(x)(flow)
    assert measured == -float(flow.bits_per_dimension(x))
    assert HeldOut(x.numpy()).make_measure(100 * x)(flow) < measured, "what is less likely measures less"


def test_the_reason_says_what_likelihood_does_not_see():
    said = explain_stop({"kept_step": 3, "steps": 9, "held_out_likelihood": -1.25}, 10)
    assert "kept step 3 of 9, where 10 held-out vectors were most likely, 1.250 bits" in said
    assert "does not see similarity" in said
