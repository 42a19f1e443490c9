"""The training loop and its checkpoints: order, budgets, seeds, dropout, divergence; the paper's loss and optimiser."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fastflow.errors import FastflowError, UsageError
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.methods import loop
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.loop import Schedule, Training, fit_flow, pick_batches
from fastflow.train.methods.names import parse_method
from fastflow.train.methods.objective import PaperAdamW, compute_loss

from support.loops import CONFIG, SCHEDULE, Interruption, X, interrupt_at, same, train


def test_budget():
    """The last two are the paper's STS-B and NLI runs (pairs of 32 a step)."""
    for rows, batch, epochs, steps in (
        (100, 20, 1.0, 5), (119, 20, 1.0, 5), (100, 20, 0.5, 2), (100, 20, 2.5, 12), (100, 100, 1.0, 1),
        (100, 64, 0.01, 1), (8628 * 2, 64, 1.0, 269), (961_700 * 2, 64, 0.15, 4507),
    ):  # fmt: skip
        assert Schedule(epochs=epochs, batch_size=batch).steps(rows) == steps, (rows, batch, epochs)


@pytest.mark.parametrize("epochs", [0.5, 2.5])
def test_the_loop_runs_its_budget(epochs):
    seen = []
    train(replace(SCHEDULE, epochs=epochs), log=lambda step, values: seen.append((step, sorted(values))))
    assert seen == [(i, ["bits_per_dimension", "gradient_norm"]) for i in range(1, int(5 * epochs) + 1)]


@pytest.mark.parametrize("rows", [100, 113])
def test_an_epoch_takes_each_row_once_in_a_new_order(rows):
    schedule = Schedule(batch_size=20)
    steps = list(pick_batches(rows, schedule, 0, 10))
    epochs = [np.concatenate(steps[:5]), np.concatenate(steps[5:])]
    for epoch in epochs:
        assert len(np.unique(epoch)) == 100
        assert epoch.max() < rows
    assert not np.array_equal(*epochs)
    assert [len(step) for step in steps] == [20] * 10
    other = np.concatenate(list(pick_batches(rows, Schedule(batch_size=20, seed=1), 0, 5)))
    assert not np.array_equal(epochs[0], other)
    for start in (1, 4, 5, 7):  # from the middle they are those of the whole
        rest = list(pick_batches(rows, schedule, start, 10))
        assert all(np.array_equal(a, b) for a, b in zip(steps[start:], rest, strict=True))


@pytest.mark.slow
def test_seeds_reproduce_and_differ_whatever_the_global_random_state():
    first = train()
    torch.manual_seed(99)
    assert same(first, train())
    other = train(replace(SCHEDULE, seed=1))
    assert all(not torch.equal(first[name], other[name]) for name in first)


def test_start_from_data_or_as_the_official_code():
    few = replace(SCHEDULE, epochs=0.2, lr=1e-12)
    from_data, glorot = train(few), train(replace(few, init="glorot"))
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
        fitted = fit_chain(parse_method(method), pooled, shape, Training(SCHEDULE, **options), live=source)
        return next(iter(fitted.flows.values())).state_dict()

    whole = run()
    assert not same(whole, run(live=False))
    with pytest.raises(Interruption):
        run(checkpoints=tmp_path, log=interrupt_at(6))
    assert same(whole, run(checkpoints=tmp_path, resume=True))


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_divergence_is_an_error_at_the_last_step_too(coupling):
    config = replace(CONFIG, coupling=coupling)
    with pytest.raises(FastflowError, match=r"training diverged at step \d+ of 15: .* use a smaller --lr"):
        train(replace(SCHEDULE, lr=1e4), config)
    shape = {"levels": 2, "depth": 2, "width": 8, "coupling": coupling, "permutation": "reversal"}
    with pytest.raises(FastflowError, match="training diverged: the final likelihood is not finite"):
        fit_chain(parse_method("flow"), X, shape, Training(Schedule(batch_size=100, lr=1e4)))


def test_a_corpus_that_no_flow_can_be_fitted_to_is_refused():
    few = r"the corpus has 19 distinct texts, fewer than one batch of 20: .*-batch-size"
    with pytest.raises(UsageError, match=few):
        train(rows=19)
    x = np.ones_like(X)
    with pytest.raises(FastflowError, match=r"every channel is constant over the 100 sentences used"):
        train(source=x.__getitem__)
    train(replace(SCHEDULE, init="glorot"), source=x.__getitem__)


def test_initialisation_looks_at_many_sentences_but_not_at_all(monkeypatch):
    monkeypatch.setattr(loop, "INITIAL_TEXTS", 30)
    asked = []
    train(source=lambda rows: (asked.append(rows), X[rows])[1])
    assert len(asked[0]) == len(np.unique(asked[0])) == 30
    assert [len(rows) for rows in asked[1:]] == [20] * 15


@pytest.mark.slow
@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_training_lowers_the_loss_and_ends_in_evaluation_mode(coupling):
    config = replace(CONFIG, coupling=coupling)
    start, flow = (
        fit_flow(X.__getitem__, 100, config, Training(replace(SCHEDULE, epochs=epochs, lr=lr)))
        for epochs, lr in ((0.2, 1e-12), (20, SCHEDULE.lr))
    )
    assert not flow.training
    assert compute_loss(flow, torch.from_numpy(X)).item() < compute_loss(start, torch.from_numpy(X)).item() - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("permutation", ["reversal", "random", "lu"])
@pytest.mark.parametrize("stops", [(5,), (8,), (14,), (6, 11)])
def test_resume_gives_the_weights_of_an_uninterrupted_run(tmp_path, stops, permutation):
    config, path = replace(CONFIG, permutation=permutation), tmp_path / "stage-0.safetensors"
    whole = train(config=config)
    for stop in stops:
        with pytest.raises(Interruption):
            train(config=config, checkpoint=path, resume=True, log=interrupt_at(stop))
    torch.manual_seed(1234)
    seen = []
    resumed = train(config=config, checkpoint=path, resume=True, log=lambda step, values: seen.append(step))
    assert seen == list(range((stop - 1) // 4 * 4 + 1, 16))  # from the last checkpoint, not from the start
    assert same(whole, resumed)


def test_a_checkpoint_is_written_every_so_many_steps_and_read_if_asked_for(tmp_path):
    path, whole = tmp_path / "new" / "c.safetensors", train()
    assert same(whole, train(checkpoint=path, resume=True)), "without one a run starts"
    assert [p.name for p in path.parent.iterdir()] == ["c.safetensors"]
    assert {"random", "first.0", "second.0", "flow.levels.0.0.actnorm.shift"} <= set(load_file(path))
    path.write_bytes(b"rubbish")
    assert same(whole, train(checkpoint=path)), "which is not read"
    train(replace(SCHEDULE, save_steps=0), checkpoint=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"lr": 2e-3}, {"epochs": 4.0}, {"seed": 7}, {"init": "glorot"}, {"batch_size": 25}, {"width": 9},
     {"coupling": "affine"}, {"identity": "b"}],
)  # fmt: skip
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change):
    path, given = tmp_path / "c.safetensors", {"identity": "a"}
    with pytest.raises(Interruption):
        train(checkpoint=path, **given, log=interrupt_at(5))
    schedule, config = (
        replace(one, **{k: v for k, v in change.items() if k in vars(one)}) for one in (SCHEDULE, CONFIG)
    )
    other = given | {k: v for k, v in change.items() if k in given}
    with pytest.raises(UsageError, match=r"c\.safetensors is from a run with another corpus, encoder or settings"):
        train(schedule, config, checkpoint=path, **other, resume=True)
    often = replace(SCHEDULE, save_steps=2)  # decides nothing about the weights
    assert same(train(), train(often, checkpoint=path, **given, resume=True))


def test_a_checkpoint_that_is_damaged_or_cannot_be_written(tmp_path):
    path = tmp_path / "c.safetensors"
    train(checkpoint=path)
    damaged = r"the checkpoint .*c\.safetensors is damaged: .*remove it or drop --resume"
    for content in (path.read_bytes()[:-10], b"", b"rubbish rubbish rubbish"):
        path.write_bytes(content)
        with pytest.raises(FastflowError, match=damaged):
            train(checkpoint=path, resume=True)
    with pytest.raises(FastflowError, match=r"the checkpoint .* cannot be written: (Not a directory|File exists)"):
        train(checkpoint=path / "c.safetensors")


@pytest.mark.parametrize("size", [1e-7, 0.01, 0.2, 50.0])
def test_many_steps_equal_the_plain_computation(size):
    """optimization_bert_flow.py as printed, in NumPy float64, on one gradient that is cut over three parameters."""
    rng = np.random.default_rng(1)
    shapes, lr = ((3, 4), (5,), (1,)), 1e-3
    ours = [nn.Parameter(torch.from_numpy(rng.normal(size=shape))) for shape in shapes]
    start = theta = np.concatenate([p.detach().flatten() for p in ours])
    m, v = np.zeros(18), np.zeros(18)
    optimiser = PaperAdamW(ours, lr)
    for g in size * rng.normal(size=(40, 18)):
        for p, part in zip(ours, np.split(g, [12, 17]), strict=True):
            p.grad = torch.from_numpy(part.reshape(p.shape).copy())
        norm = np.linalg.norm(g)
        assert optimiser.step() == pytest.approx(norm, rel=1e-12)
        assert all(p.grad is None for p in ours)
        g = g / max(1.0, norm)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - lr * (m / (np.sqrt(v) + 1e-6) + 0.01 * theta)
    moved = np.abs(theta - start).max()
    assert moved > 1e-5
    found = np.concatenate([p.detach().flatten() for p in ours])
    assert np.abs(found - theta).max() <= 1e-6 * moved  # PyTorch's clipping adds 1e-6 to the norm


def test_loss_is_twice_the_mean_bits_per_dimension():
    """As of sentence pairs: mean over side a plus mean over side b."""
    torch.manual_seed(0)
    flow = Flow(FlowConfig(16, 2, 2, 4)).double()
    a, b = torch.randn(2, 32, 16, dtype=torch.float64)
    sides = [-(flow.log_prob(side) / (16 * math.log(2))).mean() for side in (a, b)]
    assert compute_loss(flow, torch.cat([a, b])).item() == pytest.approx(sum(sides).item(), rel=1e-13)
    z, log_det = flow(a)
    density = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(dim=1) + log_det
    assert flow.log_prob(a).detach().numpy() == pytest.approx(density.detach().numpy(), rel=1e-13)
