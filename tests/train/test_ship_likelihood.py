"""The usual log-density that a flow is saved with."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.stages.density import density_of
from fastflow.train.methods.against import fit_named
from fastflow.train.ship import likelihood as shipped
from fastflow.train.ship.likelihood import LEAST, SHARE, usual

from support.builders import make_model, make_sentences


@pytest.mark.slow
def test_a_flow_records_the_log_density_that_one_text_in_a_hundred_is_below(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "LEAST", 200)
    texts = make_sentences(256, 3)
    model = make_model(tmp_path / "m", bert, texts, "flow,recolour", ordered=True)
    found = Runtime(model).likelihood
    assert found.share == 0.01
    log_probs = Runtime(model, dtype="float32").log_prob(texts)  # the dtype it is measured in
    assert np.isclose(found.log_prob, np.quantile(log_probs, 0.01), atol=1e-3)
    assert json.loads((model / "fastflow.json").read_text())["likelihood"]["log_prob"] == found.log_prob
    make_model(tmp_path / "n", bert, texts[:199], ordered=True)
    make_model(tmp_path / "o", bert, texts, "nullspace", ordered=True)
    assert Runtime(tmp_path / "n").likelihood is None
    assert Runtime(tmp_path / "o").likelihood is None


@pytest.mark.slow
def test_fit_saves_it(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "LEAST", 200)
    fit = fastflow.fit(make_sentences(256, 3), encoder=bert, method="flow", stop="budget")
    fit.save(tmp_path / "m")
    fit.save(tmp_path / "n")
    assert Runtime(tmp_path / "m").likelihood is not None
    assert Runtime(tmp_path / "m").fingerprint == Runtime(tmp_path / "n").fingerprint


def test_it_is_of_the_rows_given_and_of_enough_of_them():
    x = np.random.default_rng(0).normal(size=(LEAST, 8)).astype(np.float32)
    stages = fit_named("flow", x)
    found = usual(stages, x)
    assert found["share"] == SHARE
    wide = [stage.astype(np.float64) for stage in stages]
    below = density_of(stages, "it").log_prob(x.astype(np.float64), wide) < found["log_prob"]
    assert below.sum() == SHARE * LEAST
    assert usual(stages, x[1:]) is None
    assert usual(fit_named("whiten", x), x) is None
