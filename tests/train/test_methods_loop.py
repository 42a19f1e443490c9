"""The training loop: order, budgets, seeds, dropout, divergence."""

import dataclasses

import numpy as np
import pytest
import torch

from fastflow.errors import FastflowError, UsageError
from fastflow.train.data.embeddings import Embedder, open_encoder
from fastflow.train.methods import loop
from fastflow.train.methods.chain import fit
from fastflow.train.methods.loop import Fitting, Schedule, batch_rows, fit_flow
from fastflow.train.methods.names import parse_method
from fastflow.train.methods.objective import step_loss

from support.loops import CONFIG, SCHEDULE, Interruption, X, interrupt_at, same, train


@pytest.mark.parametrize(
    ("rows", "batch", "epochs", "steps"),
    [(100, 20, 1.0, 5), (119, 20, 1.0, 5), (100, 20, 0.5, 2), (100, 20, 2.5, 12), (100, 100, 1.0, 1),
     (100, 64, 0.01, 1), (8628 * 2, 64, 1.0, 269), (961_700 * 2, 64, 0.15, 4507)],
)  # fmt: skip
def test_budget(rows, batch, epochs, steps):
    """The last two are the paper's STS-B and NLI runs (pairs of 32 a step)."""
    assert Schedule(epochs=epochs, batch_size=batch).steps(rows) == steps


@pytest.mark.parametrize("epochs", [0.5, 2.5])
def test_the_loop_runs_its_budget(epochs):
    seen = []
    train(dataclasses.replace(SCHEDULE, epochs=epochs), log=lambda step, values: seen.append((step, sorted(values))))
    assert seen == [(i, ["bits_per_dimension", "gradient_norm"]) for i in range(1, int(5 * epochs) + 1)]


@pytest.mark.parametrize("rows", [100, 113])
def test_an_epoch_takes_each_row_once_in_a_new_order(rows):
    schedule = Schedule(batch_size=20)
    steps = list(batch_rows(rows, schedule, 0, 10))
    epochs = [np.concatenate(steps[:5]), np.concatenate(steps[5:])]
    for epoch in epochs:
        assert len(np.unique(epoch)) == 100
        assert epoch.max() < rows
    assert not np.array_equal(*epochs)
    assert [len(step) for step in steps] == [20] * 10
    other = np.concatenate(list(batch_rows(rows, Schedule(batch_size=20, seed=1), 0, 5)))
    assert not np.array_equal(epochs[0], other)


@pytest.mark.parametrize("start", [1, 4, 5, 7])
def test_rows_from_the_middle_are_those_of_the_whole(start):
    whole = list(batch_rows(100, Schedule(batch_size=20), 0, 10))
    rest = list(batch_rows(100, Schedule(batch_size=20), start, 10))
    assert len(rest) == 10 - start
    assert all(np.array_equal(a, b) for a, b in zip(whole[start:], rest, strict=True))


@pytest.mark.slow
def test_seeds_reproduce_and_differ():
    first = train()
    assert same(first, train())
    other = train(dataclasses.replace(SCHEDULE, seed=1))
    assert all(not torch.equal(first[name], other[name]) for name in first)


def test_the_global_random_state_does_not_matter():
    first = train()
    torch.manual_seed(99)
    np.random.default_rng(99)
    assert same(first, train())


def test_start_from_data_or_as_the_official_code():
    few = dataclasses.replace(SCHEDULE, epochs=0.2, lr=1e-12)
    from_data, glorot = train(few), train(dataclasses.replace(few, init="glorot"))
    name = "levels.0.0.actnorm.shift"
    assert torch.allclose(from_data[name], torch.from_numpy(-X.mean(axis=0)), atol=1e-5)
    assert glorot[name].abs().max() <= (6 / 17) ** 0.5
    assert same({"w": from_data["levels.0.0.coupling.net.weight1"]}, {"w": glorot["levels.0.0.coupling.net.weight1"]})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flow", "whiten:16,flow"])
def test_resume_with_the_encoders_dropout_on(bert, sentences, tmp_path, method):
    encoder = open_encoder(str(bert), "first-last", 32)
    texts = sentences[:60]
    pooled = Embedder(encoder, "cpu")(texts)
    shape = {"levels": 2, "depth": 1, "width": 4, "coupling": "additive", "permutation": "reversal"}

    def run(live=True, **options):
        embedder = Embedder(encoder, "cpu", dropout=True)
        source = (lambda rows: embedder([texts[i] for i in rows])) if live else None
        fitted = fit(parse_method(method), pooled, shape, Fitting(SCHEDULE, **options), live=source)
        return next(iter(fitted.flows.values())).state_dict()

    whole = run()
    assert not same(whole, run(live=False))
    with pytest.raises(Interruption):
        run(checkpoints=tmp_path, log=interrupt_at(6))
    assert same(whole, run(checkpoints=tmp_path, resume=True))


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_divergence_is_an_error(coupling):
    config = dataclasses.replace(CONFIG, coupling=coupling)
    with pytest.raises(FastflowError, match=r"training diverged at step \d+ of 15: .* use a smaller --lr"):
        train(dataclasses.replace(SCHEDULE, lr=1e4), config)


def test_divergence_at_the_last_step_is_an_error_too():
    shape = {"levels": 2, "depth": 2, "width": 8, "coupling": "additive", "permutation": "reversal"}
    with pytest.raises(FastflowError, match="training diverged: the final likelihood is not finite"):
        fit(parse_method("flow"), X, shape, Fitting(Schedule(batch_size=100, lr=1e4)))


def test_a_corpus_smaller_than_the_batch_is_wrong_usage():
    with pytest.raises(
        UsageError, match=r"the corpus has 19 distinct texts, fewer than one batch of 20: .*-batch-size"
    ):
        train(rows=19)


def test_a_constant_channel_is_refused():
    x = X.copy()
    x[:, 2] = 1.0
    with pytest.raises(FastflowError, match=r"channel 2 of 16 is constant over the 100 sentences.*--init glorot"):
        train(source=x.__getitem__)
    train(dataclasses.replace(SCHEDULE, init="glorot"), source=x.__getitem__)


def test_initialisation_looks_at_many_sentences_but_not_at_all(monkeypatch):
    monkeypatch.setattr(loop, "INITIAL_TEXTS", 30)
    asked = []
    train(source=lambda rows: (asked.append(rows), X[rows])[1])
    assert len(asked[0]) == len(np.unique(asked[0])) == 30
    assert [len(rows) for rows in asked[1:]] == [20] * 15


@pytest.mark.slow
def test_training_lowers_the_loss_and_ends_in_evaluation_mode():
    flow = fit_flow(X.__getitem__, 100, CONFIG, Fitting(dataclasses.replace(SCHEDULE, epochs=20)))
    start = fit_flow(X.__getitem__, 100, CONFIG, Fitting(dataclasses.replace(SCHEDULE, epochs=0.2, lr=1e-12)))
    assert not flow.training
    assert step_loss(flow, torch.from_numpy(X)).item() < step_loss(start, torch.from_numpy(X)).item() - 0.1
