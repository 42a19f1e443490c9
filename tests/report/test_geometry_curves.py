"""Curves of training and the step that was kept, as a fit records them."""

import pytest

from fastflow.errors import FastflowError
from fastflow.report.geometry import looks_in, read_log
from fastflow.train.choice.separability import Keeper


def record(what, *looks):
    keeper = Keeper(lambda flow: 0.0, what, history=list(looks))
    return keeper.record()


def test_the_looks_of_a_flow_are_a_curve_with_the_step_that_was_kept():
    looks = [record("separability", (0, 1.5), (10, 2.0), (14, float("nan")))]
    assert looks_in({"choice": {"looks": looks, "chosen": "flow"}}) == (
        {"choice.looks.separability": [(0.0, 1.5), (10.0, 2.0)]},
        {"choice.looks.kept_step": 10.0},
    )


def test_two_flows_have_two_curves():
    looks = [record("separability", (0, 1.0)), record("held_out_likelihood", (0, 1.0), (3, 2.0))]
    curves, kept = looks_in({"choice": {"looks": looks}})
    assert curves == {
        "choice.looks.0.separability": [(0.0, 1.0)],
        "choice.looks.1.held_out_likelihood": [(0.0, 1.0), (3.0, 2.0)],
    }
    assert kept == {"choice.looks.0.kept_step": 0.0, "choice.looks.1.kept_step": 3.0}


@pytest.mark.parametrize("training", [{}, {"choice": {}}, {"choice": {"looks": []}}])
def test_a_fit_without_a_flow_has_no_curve(training):
    assert looks_in(training) == ({}, {})


def test_logs_are_read_from_tensorboard(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with pytest.raises(FastflowError, match="no TensorBoard scalars"):
        read_log(tmp_path)
    writer = SummaryWriter(str(tmp_path))
    for step, bits in [(1, 2.0), (2, 1.5)]:
        writer.add_scalar("bits", bits, step)
    writer.close()
    assert read_log(tmp_path) == {"bits": [(1.0, 2.0), (2.0, 1.5)]}
