"""The port of the official code to PyTorch."""

from __future__ import annotations

import pytest
import torch

from fastflow.bench.peers import port as peers_port

from support.benches import trained


def test_the_port_computes_the_loss_it_is_charged_for():
    stage, module = trained(96, 3, 3, 32, "additive", "reversal")
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(0))
    loss = peers_port.Port(stage, "cpu").with_loss(x)[1]
    with torch.no_grad():
        assert float(loss) == pytest.approx(float(module.bits_per_dimension(x)), rel=1e-4)
