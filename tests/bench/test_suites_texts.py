"""Texts padded for the peers come back in their order."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.bench.peers.pooled import reference
from fastflow.bench.suites import texts

pytest.importorskip("fastflow.kernels._cpu", reason="the compiled CPU kernels are not built")


def test_padded_batches_come_back_in_the_texts_order(small_bench, sentences):
    from fastflow.model.tokens import Tokenizer

    subject = small_bench.base()
    tokenize, run = Tokenizer(subject.encoder, 64), reference(subject)
    given = sentences[:70]
    whole = texts.padded(run, tokenize)(given)
    for i in (0, 31, 32, 69):
        alone = texts.padded(run, tokenize)([given[i]])
        assert np.abs(whole[i] - alone[0]).max() <= 1e-5
    assert texts.padded(run, tokenize)([]).shape == (0, 0)
