"""Vectors next to those of Sentence Transformers, which need not be installed for any test but one."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import transformers
from click.testing import CliRunner

from fastflow.cli import main
from fastflow.errors import FastflowError
from fastflow.evaluation import with_st
from fastflow.evaluation.agreement import TOLERANCE, Agreement, compare_vectors, probe_texts
from fastflow.evaluation.with_st import compare

from support.builders import VOCABULARY, make_encoder
from support.sentence_dirs import NORMALIZE, dense, expected, make_directory, pooling
from support.static_dirs import model2vec_dir


@pytest.fixture
def saved(tmp_path, bert):
    prompts = {"prompts": {"query": "the old "}}
    return make_directory(tmp_path / "m", bert, [pooling("cls"), NORMALIZE], **prompts)


@pytest.fixture
def stand_in(monkeypatch):
    """Sentence Transformers, as far as it is called here, with the definitions; ``off`` is added to its numbers."""

    class Model:
        off, verbosity = 0.0, None

        def __init__(self, path, **options):
            self.path = path
            Model.verbosity = transformers.utils.logging.get_verbosity()

        def encode(self, texts, show_progress_bar, prompt_name=None):
            from pathlib import Path

            prompt = {None: "", "query": "the old "}[prompt_name]
            return expected(Path(self.path), texts, prompt) + Model.off

        def double(self):
            """It is exact already."""

    monkeypatch.setattr(with_st, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model))
    return Model


@pytest.mark.slow
def test_the_same_vectors(saved, stand_in):
    transformers.utils.logging.set_verbosity_warning()
    found = compare(saved)
    assert stand_in.verbosity == logging.ERROR  # no remark on a pooler that the directory lacks
    assert found.texts == 2 * len(probe_texts())
    assert 0 < found.difference <= TOLERANCE
    assert found.cosine > 0.999999
    shown = CliRunner().invoke(main, ["verify", str(saved), "--with", "st"])
    assert shown.exit_code == 0
    assert "texts in float32: largest difference to Sentence Transformers" in shown.stdout


@pytest.mark.slow
def test_others_fail(saved, stand_in):
    stand_in.off = 1e-3
    shown = CliRunner().invoke(main, ["verify", str(saved), "--with", "st"])
    assert shown.exit_code == 1
    assert "least cosine" in shown.stdout
    assert "fastflow and Sentence Transformers give different vectors, 1.0e-03 apart where 2e-06 is" in shown.stderr


@pytest.mark.parametrize("difference", [3e-6, np.nan, np.inf])
def test_too_far_apart(tmp_path, difference):
    Agreement(1, 2e-6, 1.0).check(tmp_path)
    with pytest.raises(FastflowError, match="give different vectors"):
        Agreement(1, difference, 1.0).check(tmp_path)


def test_vectors_of_another_shape_are_infinitely_far():
    assert compare_vectors(np.zeros((2, 3)), np.zeros((2, 4))) == (np.inf, -1.0)


def test_it_is_not_installed(saved, monkeypatch):
    monkeypatch.setattr(with_st, "find_spec", lambda name: None)
    with pytest.raises(FastflowError, match=r"needs sentence_transformers, .* run pip install sentence-transformers"):
        compare(saved)


def test_a_directory_of_another_kind(bert, tmp_path):
    table = model2vec_dir(tmp_path / "table")
    for path, why in ((bert, r"it has no modules\.json"), (table, "it is a table of model2vec")):
        with pytest.raises(FastflowError, match=f"was not saved by Sentence Transformers: {why}"):
            compare(path)


def test_the_real_one(saved):
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    found = compare(saved)
    assert 0 <= found.difference <= found.allowed
    found.check(saved)


@pytest.mark.slow
def test_rounding_that_tanh_does_not_shorten(tmp_path):
    """Weighted and not divided, the largest states are long, and tanh leaves their rounding alone."""
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    drawn = np.random.default_rng(0).uniform(0.2, 240, len(VOCABULARY)).tolist()
    weights = ("WordWeights", {"vocab": VOCABULARY, "weights": dict(zip(VOCABULARY, drawn, strict=True))})
    encoder = make_encoder(tmp_path / "encoder")
    path = make_directory(tmp_path / "m", encoder, [weights, pooling("max"), dense(200)], length=128)
    found = compare(path)
    assert TOLERANCE < found.difference <= found.allowed <= 1e-3
    found.check(path)
    assert f"; {found.allowed:.1e} is allowed, for its own float32 rounds as much" in str(found)
    with pytest.raises(FastflowError, match=r"4.0e-03 apart where .* is allowed"):
        replace(found, difference=4e-3).check(path)
