"""Vectors next to Sentence Transformers'."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import transformers
from click.testing import CliRunner

from fastflow.cli import main
from fastflow.errors import FastflowError
from fastflow.evaluation.agreement import TOLERANCE, Agreement, compare_vectors, compare_with_st, probe_texts

from support.builders import VOCABULARY, make_encoder
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling


@pytest.fixture
def library(monkeypatch):
    """Sentence Transformers; ``off`` is added to its vectors."""
    module = pytest.importorskip("sentence_transformers", exc_type=ImportError)

    class Model(module.SentenceTransformer):
        off, verbosity = 0.0, None

        def __init__(self, *arguments, **options):
            Model.verbosity = transformers.utils.logging.get_verbosity()
            super().__init__(*arguments, **options)

        def encode(self, *arguments, **options):
            return super().encode(*arguments, **options) + Model.off

    monkeypatch.setattr(module, "SentenceTransformer", Model)
    return Model


def test_the_same_vectors_pass_and_others_fail(bert, tmp_path, library):
    saved = make_directory(tmp_path / "m", bert, [pooling("cls"), NORMALIZE], prompts={"query": "the old "})
    transformers.utils.logging.set_verbosity_warning()
    found = compare_with_st(saved)
    assert library.verbosity == logging.ERROR  # no remark on a pooler that the directory lacks
    assert found.texts == 2 * len(probe_texts())
    assert 0 < found.difference <= found.allowed == TOLERANCE
    assert found.cosine > 0.999999
    shown = CliRunner().invoke(main, ["verify", str(saved), "--with", "st"])
    assert shown.exit_code == 0
    assert "texts in float32: largest difference to Sentence Transformers" in shown.stdout
    library.off = 1e-3
    shown = CliRunner().invoke(main, ["verify", str(saved), "--with", "st"])
    assert shown.exit_code == 1
    assert "least cosine" in shown.stdout
    assert "fastflow and Sentence Transformers give different vectors, 1.0e-03 apart where " in shown.stderr


def test_too_far_apart(tmp_path):
    Agreement(1, 2e-6, 1.0).check(tmp_path)
    for difference in (3e-6, np.nan, np.inf):
        with pytest.raises(FastflowError, match="give different vectors"):
            Agreement(1, difference, 1.0).check(tmp_path)
    assert compare_vectors(np.zeros((2, 3)), np.zeros((2, 4))) == (np.inf, -1.0)


@pytest.mark.slow
def test_rounding_that_tanh_does_not_shorten(tmp_path, library):
    """Weighted and not divided, the largest states are long, and tanh does not shorten their rounding."""
    drawn = np.random.default_rng(0).uniform(0.2, 240, len(VOCABULARY)).tolist()
    weights = ("WordWeights", {"vocab": VOCABULARY, "weights": dict(zip(VOCABULARY, drawn, strict=True))})
    encoder = make_encoder(tmp_path / "encoder")
    path = make_directory(tmp_path / "m", encoder, [weights, pooling("max"), dense(200)], length=128)
    found = compare_with_st(path)
    assert TOLERANCE < found.difference <= found.allowed <= 1e-3
    found.check(path)
    assert f"; {found.allowed:.1e} is allowed, for its own float32 rounds as much" in str(found)
    with pytest.raises(FastflowError, match=r"4.0e-03 apart where .* is allowed"):
        replace(found, difference=4e-3).check(path)
