"""The paper's loss and its optimiser, against plain re-computations in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.objective import PaperAdamW, step_loss

LR = 1e-3


def plain_steps(theta, gradients, lr):
    """optimization_bert_flow.py as printed, in NumPy float64."""
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for g in gradients:
        norm = np.sqrt((g**2).sum())
        g = g / max(1.0, norm)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        theta = theta - lr * (m / (np.sqrt(v) + 1e-6) + 0.01 * theta)
    return theta


def give(parameters, gradient):
    """Spread one long gradient over the parameters."""
    start = 0
    for p in parameters:
        p.grad = torch.tensor(gradient[start : start + p.numel()].reshape(p.shape), dtype=p.dtype)
        start += p.numel()


def parameters(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in [(3, 4), (5,), (1,)]]


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors]).numpy()


def test_first_step_without_bias_correction():
    """-lr (3.16 sign g + 0.01 theta) where |g| >> 3e-5: 0.1 g / sqrt(0.001 g^2) = sqrt(10) sign g."""
    ours = parameters()
    theta, g = flat(ours), 0.03 * np.sign(np.random.default_rng(0).normal(size=18)) + 0.01
    give(ours, g)
    PaperAdamW(ours, LR).step()
    moved = flat(ours) - theta
    assert np.abs(moved + LR * (math.sqrt(10) * np.sign(g) + 0.01 * theta)).max() <= 0.005 * LR
    assert np.abs(moved).min() >= 3 * LR  # a corrected Adam would move by lr


@pytest.mark.parametrize("size", [1e-7, 0.01, 0.2, 50.0])
def test_many_steps_equal_the_plain_computation(size):
    ours, rng = parameters(), np.random.default_rng(1)
    theta = flat(ours)
    gradients = [size * rng.normal(size=18) for _ in range(40)]
    optimiser = PaperAdamW(ours, LR)
    norms = []
    for g in gradients:
        give(ours, g)
        norms.append(optimiser.step())
        assert all(p.grad is None for p in ours)
    expected = plain_steps(theta, gradients, LR)
    moved = np.abs(expected - theta).max()
    assert moved > 1e-5
    assert np.abs(flat(ours) - expected).max() <= 1e-6 * moved  # PyTorch's clipping adds 1e-6 to the norm
    assert norms == pytest.approx([np.linalg.norm(g) for g in gradients], rel=1e-12)


def test_clipping_is_by_the_global_norm():
    """Both tensors shrink by one factor: of gradients 30 and 40, norm 50, the moments see 0.6 and 0.8."""
    ours = [nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2)]
    optimiser = PaperAdamW(ours, LR)
    give(ours, np.array([30.0, 40.0]))
    assert optimiser.step() == pytest.approx(50)
    assert [m.item() for m in optimiser.first] == pytest.approx([0.06, 0.08], rel=1e-6)
    give(ours, np.array([0.03, 0.04]))  # below the limit: left as it is
    optimiser.step()
    assert [m.item() for m in optimiser.first] == pytest.approx([0.9 * 0.06 + 0.003, 0.9 * 0.08 + 0.004], rel=1e-6)


def test_decay_reaches_every_parameter_of_a_flow():
    torch.manual_seed(0)
    flow = Flow(FlowConfig(16, 2, 2, 4))
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(1.0)
    before = {name: p.detach().clone() for name, p in flow.named_parameters()}
    optimiser = PaperAdamW(flow.parameters(), LR)
    for p in flow.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    for name, p in flow.named_parameters():  # actnorm shifts and scales and biases among them
        assert torch.allclose(p, before[name] * (1 - 0.01 * LR), rtol=0, atol=1e-7), name
        assert not torch.equal(p, before[name]), name


@pytest.mark.slow
def test_learning_rate_is_constant():
    ours = [nn.Parameter(torch.zeros(1, dtype=torch.float64))]
    optimiser = PaperAdamW(ours, LR)
    for _ in range(8_000):
        give(ours, np.array([0.5]))
        optimiser.step()
    before = ours[0].item()
    give(ours, np.array([0.5]))
    optimiser.step()
    assert ours[0].item() - before == pytest.approx(-LR * (1 + 0.01 * before), rel=1e-3)


def test_loss_is_twice_the_mean_bits_per_dimension():
    """As of sentence pairs: mean over side a plus mean over side b."""
    torch.manual_seed(0)
    flow = Flow(FlowConfig(16, 2, 2, 4)).double()
    a, b = torch.randn(2, 32, 16, dtype=torch.float64)
    sides = [-(flow.log_prob(side) / (16 * math.log(2))).mean() for side in (a, b)]
    assert step_loss(flow, torch.cat([a, b])).item() == pytest.approx(sum(sides).item(), rel=1e-13)
    z, log_det = flow(a)
    density = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(dim=1) + log_det
    assert flow.log_prob(a).detach().numpy() == pytest.approx(density.detach().numpy(), rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_training_lowers_the_loss(coupling):
    torch.manual_seed(0)
    flow = Flow(FlowConfig(16, 2, 2, 8, coupling))
    first = torch.randn(256, 4)
    x = torch.cat([first, first**2, torch.randn(256, 8)], dim=1)
    flow.initialise(x)
    optimiser, losses = PaperAdamW(flow.parameters(), LR), []
    for _ in range(60):
        loss = step_loss(flow, x)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
