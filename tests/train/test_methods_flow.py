"""The flow and its training: layers, wiring, likelihood; order, budgets, seeds, divergence, checkpoints, optimiser."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fastflow.errors import FastflowError, UsageError
from fastflow.train.methods import loop
from fastflow.train.methods.flow import (
    COUPLINGS,
    ActNorm,
    CouplingNet,
    Flow,
    FlowConfig,
    LUPermutation,
    draw_glorot,
    make_permutation,
)
from fastflow.train.methods.loop import PaperAdamW, Schedule, compute_loss, pick_batches

from support.loops import CONFIG, SCHEDULE, Interruption, X, interrupt_at, same, train

C = 16
PERMUTATIONS = ("reversal", "random", "lu")
SETTINGS = list(itertools.product(COUPLINGS, PERMUTATIONS))


def make(dim=C, levels=2, depth=3, coupling="additive", permutation="reversal"):
    torch.manual_seed(0)
    return Flow(FlowConfig(dim, levels, depth, 8, coupling, permutation)).double()


TRANSFORMS = {
    "actnorm": lambda: ActNorm(C),
    **{kind: lambda kind=kind: make_permutation(kind, C) for kind in PERMUTATIONS},
    **{kind: lambda kind=kind: COUPLINGS[kind](C, 8) for kind in COUPLINGS},
    **{f"flow-2-3-{c}-{p}": lambda c=c, p=p: make(C, 2, 3, c, p) for c, p in SETTINGS},
    **{  # every number of levels and of steps, the settings dealt out in rotation
        f"flow-{levels}-{depth}": lambda levels=levels, depth=depth, i=i: make(C, levels, depth, *SETTINGS[i % 6])
        for i, (levels, depth) in enumerate(itertools.product(range(1, 5), range(1, 5)))
    },
}


def randomise(module):
    """Parameters away from their start, at which couplings do nothing, and moderate, so that inverses are exact."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(("lower", "upper", "logdiag")):
                parameter.add_(0.05 * noise)
            else:
                parameter.copy_((0.05 if "logscale" in name else 0.3) * noise)
    return module.double()


@pytest.fixture(params=TRANSFORMS)
def transform(request):
    torch.manual_seed(0)
    return randomise(TRANSFORMS[request.param]())


def rows(count):
    return torch.randn(count, C, dtype=torch.float64, generator=torch.Generator().manual_seed(count + 7)) * 2 + 0.5


def spread(y):
    return y.std(dim=0, correction=0)


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_row_does_not_see_its_neighbours_and_no_parameter_changes(transform, count):
    before = {name: tensor.clone() for name, tensor in transform.state_dict().items()}
    x = rows(count)
    for mode in (True, False):
        y, log_det = transform.train(mode)(x)
        assert y.shape == (count, C)
        assert log_det.shape in [(), (count,)]
        assert torch.isfinite(y).all()
        assert torch.isfinite(log_det).all()
    for row, own, whole in zip(x, y, log_det.expand(count), strict=True):
        alone, its_own = transform(row[None])
        assert (alone[0] - own).abs().max() <= 1e-13
        assert (its_own - whole).abs().max() <= 1e-13
    assert all(torch.equal(before[name], tensor) for name, tensor in transform.state_dict().items())


def test_the_log_determinant_is_of_the_jacobian(transform):
    x = rows(3)
    y, log_det = transform(x)
    assert (y - x).abs().max() > 0.1  # it did something
    for row, found in zip(x, log_det.expand(3), strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda v: transform(v[None])[0][0], row)
        sign, expected = torch.linalg.slogdet(jacobian)
        assert sign.abs() == 1
        assert (found - expected).abs() <= 1e-11


def test_initial_weights():
    for channels, bound in ((768, 0.088), (384, 0.125), (192, 0.176), (32, 0.43)):
        values = torch.cat([draw_glorot(channels) for _ in range(200)])
        exact = math.sqrt(6 / (1 + channels))
        assert exact == pytest.approx(bound, abs=0.005)
        assert 0.99 * exact <= values.abs().max() <= exact
        assert values.std().item() == pytest.approx(exact / math.sqrt(3), rel=0.05)
    net = CouplingNet(384, 32, 384)
    assert net.weight1.std().item() == pytest.approx(0.05, rel=0.05)
    assert net.weight2.std().item() == pytest.approx(0.05, rel=0.15)
    assert not any(zero.any() for zero in (net.weight3, net.bias3, net.logscale3))
    assert all(v.any() for v in (net.shift1, net.shift2, net.logscale1, net.logscale2))


def test_data_dependent_actnorms_normalise_inside_the_nets():
    torch.manual_seed(0)
    net, x = CouplingNet(8, 6, 8).double(), rows(400)[:, :8]
    net.initialise(x)
    first = (x @ net.weight1.T + net.shift1) * (3 * net.logscale1).exp()
    second = (first.relu() @ net.weight2.T + net.shift2) * (3 * net.logscale2).exp()
    for hidden in (first, second):
        assert hidden.mean(dim=0).abs().max() <= 1e-6
        assert (spread(hidden) - 1).abs().max() <= 1e-3


def test_a_constant_channel_keeps_its_scale():
    for value in (0.0, 3.25, -1e4):
        layer, x, known = ActNorm(C), rows(64).float(), torch.arange(C) == 2
        x[:, 5] = value
        assert torch.equal(layer.initialise(x, known).nonzero()[:, 0], torch.tensor([2, 5])), value
        y = layer(x)[0]
        assert y[:, 5].abs().max() <= 1e-6 * abs(value), value
        assert not layer.logscale[[2, 5]].any(), value
        assert torch.equal(y[:, 2], x[:, 2] + layer.shift[2]), value
    spread_out = rows(500) * torch.logspace(-2, 3, C, dtype=torch.float64) + torch.linspace(-50, 50, C)
    assert not ActNorm(C).double().initialise(spread_out, torch.zeros(C, dtype=torch.bool)).any()
    shift = layer.shift.clone()
    with pytest.raises(FastflowError, match="every channel is constant over the 1 sentences used; give more varied"):
        layer.initialise(rows(1).float(), torch.zeros(C, dtype=torch.bool))
    assert torch.equal(layer.shift, shift)


def test_permutations():
    x = rows(4)
    assert torch.equal(make_permutation("reversal", C)(x)[0], x.flip(1))
    torch.manual_seed(3)
    random = make_permutation("random", C)
    assert torch.equal(random.index.sort()[0], torch.arange(C))
    assert not torch.equal(random.index, torch.arange(C))
    assert torch.equal(random(x)[0], x[:, random.index])
    assert list(make_permutation("reversal", C).state_dict()) == []  # follows from the width
    assert list(random.state_dict()) == ["index"]
    torch.manual_seed(0)
    layer = LUPermutation(C).double()
    matrix = layer(torch.eye(C, dtype=torch.float64))[0].T  # W e_i in columns
    assert (matrix @ matrix.T - torch.eye(C)).abs().max() <= 1e-5, "a rotation, with factors in float32"
    assert layer.logdiag.sum().abs().item() <= 1e-5
    assert {*layer.sign.tolist()} == {-1.0, 1.0}


SHAPES = [(8, 1, 1), (12, 2, 3), (16, 3, 3), (32, 4, 2), (24, 3, 4)]  # dim, levels, depth


def data(count, dim):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(dim, dim, generator=generator, dtype=torch.float64) / dim**0.5
    x = x * torch.linspace(0.05, 0.9, dim, dtype=torch.float64) + torch.linspace(-1, 1, dim, dtype=torch.float64)
    x[:, dim // 3] = 9 * x[:, dim // 3] - 7
    return x


def test_sizes_and_defaults_are_the_papers():
    for dim, levels, count in ((768, 3, 151_488), (768, 2, 127_872), (1024, 3, 198_528)):
        parameters = list(Flow(FlowConfig(dim, levels)).parameters())
        assert sum(p.numel() for p in parameters) == count, (dim, levels)
        assert all(p.requires_grad for p in parameters)
    assert FlowConfig(768) == FlowConfig(768, 2, 3, 32, "additive", "reversal")
    with pytest.raises(UsageError, match="needs a width divisible by 4, and the embeddings have 0 dimensions"):
        FlowConfig(0)


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_wiring(levels):
    """With g = 0 and s = b = 0 only the permutations and the splits are left."""
    flow = make(16, levels)
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            if "actnorm" in name:
                parameter.zero_()
    z, log_det = flow(torch.arange(16.0).double()[None])
    emitted, kept = [], list(range(16))
    for level in range(levels):
        if level:
            half = len(kept) // 2
            emitted += kept[half:]
            kept = kept[:half]
        kept = kept[::-1]  # three reversals make one
    assert z[0].tolist() == [*emitted, *kept]
    if levels > 1:
        assert z[0, :8].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]  # the original first half, reversed
    assert log_det.item() == 0


@pytest.mark.parametrize(("coupling", "permutation"), SETTINGS)
@pytest.mark.parametrize(("dim", "levels", "depth"), SHAPES)
def test_initialisation_normalises_the_output_of_every_actnorm(dim, levels, depth, permutation, coupling):
    flow, x, seen = make(dim, levels, depth, coupling, permutation), data(600, dim), []
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            if name.endswith("3"):  # the end of a net, which starts at 0
                parameter.normal_(0, 0.3 if "weight" in name else 0.1)
    flow.initialise(x)
    for layer in (m for m in flow.modules() if isinstance(m, ActNorm)):
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    flow(x)
    assert len(seen) == levels * depth
    for y in seen:
        assert y.mean(dim=0).abs().max() <= 1e-9
        assert (spread(y) - 1).abs().max() <= 2e-4


def test_budget():
    """The last two are the paper's STS-B and NLI runs (pairs of 32 a step)."""
    for rows, batch, epochs, steps in (
        (100, 20, 1.0, 5), (119, 20, 1.0, 5), (100, 20, 0.5, 2), (100, 20, 2.5, 12), (100, 100, 1.0, 1),
        (100, 64, 0.01, 1), (8628 * 2, 64, 1.0, 269), (961_700 * 2, 64, 0.15, 4507),
    ):  # fmt: skip
        assert Schedule(epochs=epochs, batch_size=batch).steps(rows) == steps, (rows, batch, epochs)


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
