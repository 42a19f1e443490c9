"""The stand-in for a GPU is no use unless a missing wait shows: memory read too early is not what it will be."""

from __future__ import annotations

import pytest

from fastflow.errors import FastflowError

from support.gpu_standin import on_standin
from support.triton_processes import NEEDS

pytestmark = NEEDS


@pytest.mark.parametrize("careless", [0, 2])
def test_a_stream_that_does_not_wait_is_found_out(standin, model, sentences, monkeypatch, careless):
    """The stand-in is no use unless a missing wait shows: ids that never came, vectors that are not there yet."""
    real = standin.wait
    monkeypatch.setattr(standin, "wait", lambda stream, event: stream.number == careless or real(stream, event))
    with pytest.raises((IndexError, TypeError)):
        on_standin(model).encode(sentences, batch_size=40)


def test_reading_before_the_device_is_done_is_found_out(standin, model, sentences, monkeypatch):
    monkeypatch.setattr(standin, "synchronize", lambda event: None)
    with pytest.raises(FastflowError, match="text 0 gives NaN or infinity"):
        on_standin(model).encode(sentences, batch_size=40)
