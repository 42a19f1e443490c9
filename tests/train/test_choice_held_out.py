"""Held-out rows: few, drawn by the seed, and never trained on."""

import numpy as np
import pytest
import torch

from fastflow.train.choice.held_out import MOST, PART, HeldOut, held, split, why
from fastflow.train.methods.flow import Flow, FlowConfig


@pytest.mark.parametrize(("count", "kept"), [(2, 1), (PART, 1), (10 * PART, 10), (10**7, MOST)])
def test_one_in_so_many_is_held_out(count, kept):
    assert held(count) == kept


def test_a_split_takes_every_row_once_and_follows_the_seed():
    train, out = split(205, 7)
    assert len(out) == held(205)
    assert sorted([*train, *out]) == list(range(205))
    assert (np.diff(train) > 0).all()
    assert (np.diff(out) > 0).all()
    assert np.array_equal(split(205, 7)[1], out)
    assert not np.array_equal(split(205, 8)[1], out)


def test_the_measure_is_the_mean_log_likelihood_in_bits():
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    flow = Flow(FlowConfig(8, 1, 1, 4))
    measured = HeldOut(x.numpy()).measure(x)(flow)
    assert measured == -float(flow.bits_per_dimension(x))
    assert HeldOut(x.numpy()).measure(100 * x)(flow) < measured, "what is less likely measures less"


def test_the_reason_says_what_likelihood_does_not_see():
    said = why({"kept_step": 3, "steps": 9, "held_out_likelihood": -1.25}, 10)
    assert "kept step 3 of 9, where 10 held-out vectors were most likely, 1.250 bits" in said
    assert "does not see similarity" in said
