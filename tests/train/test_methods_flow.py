"""The flow: its layers, its wiring and its likelihood."""

import itertools
import math

import numpy as np
import pytest
import torch

from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.flow.equations import standardize
from fastflow.stages.vectors import cosine
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.layers import COUPLINGS, ActNorm, CouplingNet, LUPermutation, draw_glorot, make_permutation

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


def test_inverse_undoes_forward_and_the_log_determinant_is_of_the_jacobian(transform):
    x = rows(33)
    y, log_det = transform(x)
    assert (y - x).abs().max() > 0.1  # it did something
    assert (transform.inverse(y) - x).abs().max() <= 1e-12 * x.abs().max()
    assert (transform(transform.inverse(y))[0] - y).abs().max() <= 1e-12 * y.abs().max()
    for row, found in zip(x[:3], log_det.expand(33), strict=False):
        jacobian = torch.autograd.functional.jacobian(lambda v: transform(v[None])[0][0], row)
        sign, expected = torch.linalg.slogdet(jacobian)
        assert sign.abs() == 1
        assert (found - expected).abs() <= 1e-11


def test_actnorm_is_the_equation():
    layer, x = randomise(ActNorm(3)), rows(4)[:, :3]
    y, log_det = layer(x)
    assert torch.allclose(y, (x + layer.shift) * (3 * layer.logscale).exp(), rtol=1e-14)
    assert log_det.item() == pytest.approx(3 * layer.logscale.sum().item(), rel=1e-14)


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


def test_data_dependent_actnorms_normalise_also_inside_the_nets():
    x = rows(500) * torch.logspace(-2, 3, C, dtype=torch.float64) + torch.linspace(-50, 50, C, dtype=torch.float64)
    layer = ActNorm(C).double()
    assert not layer.initialise(x, torch.zeros(C, dtype=torch.bool)).any()
    y = layer(x)[0]
    assert y.mean(dim=0).abs().max() <= 1e-10
    assert (spread(y) - 1).abs().max() <= 1e-4  # 1e-6 is added to a deviation of 0.02
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


@pytest.mark.parametrize(("dim", "levels", "depth"), SHAPES)
def test_zero_coupling_after_initialisation_gives_the_cosines_of_standardize(dim, levels, depth):
    flow, x = make(dim, levels, depth), data(400, dim)
    flow.initialise(x)
    z = flow(x)[0].detach().numpy()
    raw = x.numpy()
    expected = cosine(*[standardize(raw, raw.mean(axis=0), raw.std(axis=0))] * 2)
    assert np.abs(cosine(raw, raw) - expected).max() >= 0.5
    assert np.abs(cosine(z, z) - expected).max() <= 1e-5 * 10 / 3  # each step's 1e-6 over a deviation as small as 0.02


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


def test_a_width_that_does_not_halve_is_wrong_usage():
    for dim, levels, least in ((12, 3, 8), (7, 1, 2), (0, 2, 4)):
        with pytest.raises(UsageError, match=f"needs a width divisible by {least}, and the embeddings have {dim} dim"):
            FlowConfig(dim, levels)
