"""The encoder of a run: windows give the vectors of the Runtime, repeated texts too."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.files.encoding import Encoder, stored
from fastflow.files.run import Settings


@pytest.mark.parametrize("dedupe", [False, True])
def test_a_window_gives_the_vectors_of_its_texts(model, dedupe):
    runtime, texts = Runtime(model), ["the dog", "a cat", "the dog"]
    encoder = Encoder(runtime, Settings(dedupe=dedupe, dim=8, normalize=True), False, 2)
    made = encoder(texts)
    assert made.log_probs is None
    assert np.array_equal(made.vectors, runtime.encode(texts, None, True, truncate_dim=8))
    assert encoder([]).vectors.shape == (0, 8)


def test_float64_is_for_computing_only():
    assert stored(np.zeros(2)).dtype == np.float32
    assert stored(np.zeros(2, np.int8)).dtype == np.int8
