"""The label-free rule and the held-out rows: what they measure, when they look and what they keep."""

import dataclasses

import numpy as np
import pytest
import torch

from fastflow.train.choice.held_out import MOST, PART, HeldOut, count_held_out, explain_stop, split
from fastflow.train.choice.selection import choose
from fastflow.train.choice.separability import Keeper, Views, is_due, make_views, measure_separability
from fastflow.train.data.embeddings import open_encoder
from fastflow.train.methods.against import fit_named
from fastflow.train.methods.chain import Fitted
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.loop import Training, fit_flow

from support.builders import make_encoder
from support.loops import CONFIG, SCHEDULE, Interruption, X, interrupt_at, same


def normal(rows, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dim))


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
    """A mean that is kept hides from cosines what a calibration did to the texts."""
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


def peaked(best):
    """A measure that is largest at the look number ``best``."""
    looks = iter(range(100))
    return lambda flow: -abs(next(looks) - best)


@pytest.mark.slow
@pytest.mark.parametrize(("look", "step"), [(0, 0), (1, 10), (2, 14), (3, 15)])
def test_the_flow_of_the_best_look_comes_back(look, step):
    """It is the flow that a budget of just that many steps gives (15 is the whole)."""
    keeper = Keeper(peaked(look))
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
