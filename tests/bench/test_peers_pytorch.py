"""PyTorch's settings during a benchmark, and after one that failed."""

import logging

import pytest
import torch

from fastflow.bench.peers.pytorch import compiling, settings


def state():
    return (
        torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32,
        torch.is_inference_mode_enabled(),
    )  # fmt: skip


def test_a_run_has_its_threads_no_gradients_and_whole_products():
    before = state()
    with settings(3):
        assert state() == (3, False, False, True)
    assert state() == before


def test_all_is_as_it_was_after_an_error_too(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = state()
    with pytest.raises(ZeroDivisionError), settings(before[0] + 1):
        raise ZeroDivisionError
    assert state() == before
    logger = logging.getLogger("torch._dynamo")
    level, limit = logger.level, torch._dynamo.config.recompile_limit
    with compiling():
        assert (logger.level, torch._dynamo.config.recompile_limit) == (logging.ERROR, 64)
    assert (logger.level, torch._dynamo.config.recompile_limit) == (level, limit)
    with pytest.raises(ZeroDivisionError), compiling():
        raise ZeroDivisionError
    assert (logger.level, torch._dynamo.config.recompile_limit) == (level, limit)
