"""The flow against the oracles of the method: wiring, sizes, zero couplings, likelihood, initialisation."""

import math

import numpy as np
import pytest
import torch

from fastflow.errors import UsageError
from fastflow.kernels.flow.equations import standardize
from fastflow.stages.vectors import cosine
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.layers import ActNorm

SHAPES = [(8, 1, 1), (12, 2, 3), (16, 3, 3), (32, 4, 2), (24, 3, 4)]  # dim, levels, depth


def make(dim=16, levels=2, depth=3, width=8, coupling="additive", permutation="reversal", seed=0) -> Flow:
    torch.manual_seed(seed)
    return Flow(FlowConfig(dim, levels, depth, width, coupling, permutation)).double()


def stir(flow: Flow) -> Flow:
    """Couplings that do something."""
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            if "weight3" in name:
                parameter.normal_(0, 0.3)
            elif "bias3" in name or "logscale3" in name:
                parameter.normal_(0, 0.1)
    return flow


def data(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Correlated channels of unlike mean and deviation, with two outlier channels as BERT's have."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(dim, dim, generator=generator, dtype=torch.float64) / dim**0.5
    x = x * torch.linspace(0.05, 0.9, dim, dtype=torch.float64) + torch.linspace(-1, 1, dim, dtype=torch.float64)
    x[:, dim // 3] = 9 * x[:, dim // 3] - 7
    return x


@pytest.mark.parametrize(("dim", "levels", "count"), [(768, 3, 151_488), (768, 2, 127_872), (1024, 3, 198_528)])
def test_sizes_and_defaults_are_the_papers(dim, levels, count):
    flow = Flow(FlowConfig(dim, levels))
    assert sum(p.numel() for p in flow.parameters()) == count
    assert all(p.requires_grad for p in flow.parameters())
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


@pytest.mark.parametrize("permutation", ["reversal", "random"])
@pytest.mark.parametrize(("dim", "levels", "depth"), SHAPES)
def test_zero_coupling_is_a_permuted_affine_map_per_channel(dim, levels, depth, permutation):
    flow = make(dim, levels, depth, permutation=permutation)
    x = data(50, dim)
    z = flow(x)[0].detach().numpy()
    slopes = torch.autograd.functional.jacobian(lambda v: flow(v[None])[0][0], x[0]).numpy()
    assert ((slopes != 0).sum(axis=0) == 1).all()
    assert ((slopes != 0).sum(axis=1) == 1).all()
    source = (slopes != 0).argmax(axis=1)
    scale = slopes[np.arange(dim), source]
    assert (scale > 0).all()
    shift = z[0] - scale * x[0, source].numpy()
    assert np.abs(z - (x[:, source].numpy() * scale + shift)).max() <= 1e-11 * np.abs(z).max()


@pytest.mark.parametrize(("dim", "levels", "depth"), SHAPES)
def test_zero_coupling_after_initialisation_gives_the_cosines_of_standardize(dim, levels, depth):
    flow, x = make(dim, levels, depth), data(400, dim)
    flow.initialise(x)
    z = flow(x)[0].detach().numpy()
    raw = x.numpy()
    expected = cosine(*[standardize(raw, raw.mean(axis=0), raw.std(axis=0))] * 2)
    assert np.abs(cosine(raw, raw) - expected).max() >= 0.5
    assert np.abs(cosine(z, z) - expected).max() <= 1e-5 * 10 / 3  # each step's 1e-6 over a deviation as small as 0.02


@pytest.mark.parametrize("coupling", ["additive", "affine"])
@pytest.mark.parametrize("permutation", ["reversal", "random", "lu"])
@pytest.mark.parametrize(("dim", "levels", "depth"), SHAPES)
def test_initialisation_normalises_the_output_of_every_actnorm(dim, levels, depth, permutation, coupling):
    flow, x = stir(make(dim, levels, depth, 8, coupling, permutation)), data(600, dim)
    flow.initialise(x)
    seen = []
    for layer in (m for m in flow.modules() if isinstance(m, ActNorm)):
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
    flow(x)
    assert len(seen) == levels * depth
    for y in seen:
        assert y.mean(dim=0).abs().max() <= 1e-9
        assert (y.std(dim=0, correction=0) - 1).abs().max() <= 2e-4


def test_initialisation_never_runs_again():
    flow = stir(make())
    flow.initialise(data(100, 16))
    state = {name: tensor.clone() for name, tensor in flow.state_dict().items()}
    copy = stir(make(seed=5))
    copy.load_state_dict(state)
    for model in (flow, copy):
        for mode, rows in ((True, data(1, 16, 1) + 100), (False, data(2, 16, 2) * 50)):
            model.train(mode)(rows)
            model.bits_per_dimension(rows)
            model.inverse(rows)
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_first_gradient_is_zero_inside_the_nets():
    flow, x = make(), data(64, 16)
    flow.bits_per_dimension(x).backward()
    for name, parameter in flow.named_parameters():
        inside = name.rsplit(".", 1)[-1] in ("weight1", "weight2", "shift1", "shift2", "logscale1", "logscale2")
        still = inside or name.endswith("net.logscale3")  # scales W3 h + b3 = 0
        assert parameter.grad is not None
        assert still == (not parameter.grad.any()), name


@pytest.mark.parametrize("permutation", ["reversal", "random"])
def test_additive_log_determinant_is_one_number(permutation):
    """And so the density is a constant less half the squared norm; of affine couplings it depends on the row."""
    flow, x = stir(make(permutation=permutation)), data(50, 16)
    z, log_det = flow(x)
    expected = sum(3 * m.logscale.sum() for m in flow.modules() if isinstance(m, ActNorm))
    assert (log_det == log_det[0]).all()
    assert (log_det[0] - expected).abs() <= 1e-13
    constants = flow.log_prob(x) + 0.5 * z.square().sum(dim=1)
    assert (constants - (log_det[0] - 8 * math.log(2 * math.pi))).abs().max() <= 1e-12 * constants[0].abs()
    before = log_det[0].item()
    assert stir(flow)(x)[1][0].item() == before  # independent of g
    assert stir(make(coupling="affine", permutation=permutation))(x)[1].std() > 1e-3


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_the_density_integrates_to_one(coupling):
    torch.manual_seed(3)
    flow = stir(Flow(FlowConfig(2, 1, 2, 4, coupling)).double())
    with torch.no_grad():
        for name, parameter in flow.named_parameters():
            parameter.mul_(0.1 if "logscale" in name else 0.5)
        axis = torch.linspace(-12, 12, 601, dtype=torch.float64)
        density = flow.log_prob(torch.cartesian_prod(axis, axis)).exp()
    assert density.sum().item() * (axis[1] - axis[0]).item() ** 2 == pytest.approx(1, abs=2e-3)


def test_bits_per_dimension_of_fitted_gaussians():
    """2.05 + log2(deviation), so negative values are legitimate."""
    flow, x = make(), data(5000, 16)
    flow.initialise(x)
    expected = (x.std(dim=0, correction=0).log2().mean() + 0.5 * math.log2(2 * math.pi * math.e)).item()
    assert expected == pytest.approx(2.047 + x.std(dim=0, correction=0).log2().mean().item(), abs=1e-3)
    assert flow.bits_per_dimension(x).item() == pytest.approx(expected, abs=1e-5)
    assert flow.bits_per_dimension(x / 64).item() == pytest.approx(expected, abs=100)  # other data: finite, no error


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 12, "levels": 3}, "needs a width divisible by 8, and the embeddings have 12 dimensions"),
        ({"dim": 7, "levels": 1}, "divisible by 2"),
        ({"dim": 0}, "divisible by 4"),
        ({"dim": 64, "levels": 5}, "levels must be 1 to 4, not 5"),
        ({"dim": 64, "levels": 0}, "levels must be 1 to 4, not 0"),
        ({"dim": 64, "depth": 0}, "depth and width must be at least 1, not 0 and 32"),
        ({"dim": 64, "width": 0}, "depth and width must be at least 1, not 3 and 0"),
        ({"dim": 64, "coupling": "spline"}, "unknown coupling 'spline'; known: additive, affine"),
        ({"dim": 64, "permutation": "shuffle"}, "unknown permutation 'shuffle'; known: reversal, random, lu"),
    ],
)
def test_impossible_shapes_are_wrong_usage(settings, message):
    with pytest.raises(UsageError, match=message):
        FlowConfig(**settings)
