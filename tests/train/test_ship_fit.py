"""A fit in memory, and what it is saved with: precision, likelihood and the card of vectors."""

import gc
import json

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.stages.calibration import Stage
from fastflow.stages.density import density_of
from fastflow.train.methods.against import fit_named
from fastflow.train.ship import likelihood as shipped
from fastflow.train.ship import precision
from fastflow.train.ship.card import write_vector_card
from fastflow.train.ship.likelihood import LEAST, SHARE, measure_likelihood
from fastflow.train.ship.precision import TEXTS, measure_precision

from support.builders import make_model, make_sentences


@pytest.mark.slow
def test_the_runtime_needs_no_saved_model_and_leaves_nothing(bert, sentences, empty, tmp_path):
    fit = fastflow.fit(sentences, bert, "whiten:8")
    mark = fit.save(tmp_path / "saved")
    runtime = fit.runtime(backend="reference")
    assert (runtime.fingerprint, runtime.backend, runtime.dim) == (mark, "reference", 8)
    saved = fastflow.Runtime(tmp_path / "saved", backend="reference")
    assert np.array_equal(runtime.encode(sentences[:9]), saved.encode(sentences[:9]))
    assert len(list(empty.iterdir())) == 1
    del runtime
    gc.collect()
    assert list(empty.iterdir()) == []
    with pytest.raises(FastflowError, match="tpu"):
        fit.runtime(device="tpu")
    assert list(empty.iterdir()) == []


FORKED = """
import gc, os, pickle, sys, tempfile
import fastflow
tempfile.tempdir = sys.argv[2]
texts = [line.strip() for line in open(sys.argv[3])]
runtime = fastflow.fit(texts, sys.argv[1], "standardize").runtime()
if os.fork() == 0:
    del runtime
    gc.collect()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
again = pickle.loads(pickle.dumps(runtime))
assert (again.encode("the dog") == runtime.encode("the dog")).all()
"""


@pytest.mark.slow
def test_a_fork_leaves_the_folder_of_a_runtime_alone_and_the_end_of_the_process_removes_it(
    bert, corpus, empty, run_python
):
    done = run_python(FORKED, bert, empty, corpus)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(empty.glob("fastflow-*")) == []  # PyTorch may leave a folder of its own


@pytest.mark.slow
def test_saving_twice_to_one_place_is_refused(bert, sentences, tmp_path):
    fit = fastflow.fit(sentences, bert, "standardize")
    fit.save(tmp_path / "m")
    with pytest.raises(UsageError, match=r"exists already; remove it or choose another directory$"):
        fit.save(tmp_path / "m")
    with pytest.raises(UsageError, match="is for an encoder from the Hub"):
        fit.save(tmp_path / "light", reference_encoder=True)
    assert not (tmp_path / "light").exists()


@pytest.mark.slow
def test_a_flow_records_the_log_density_that_one_text_in_a_hundred_is_below(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "LEAST", 200)
    texts = make_sentences(256, 3)
    model = make_model(tmp_path / "m", bert, texts, "flow,recolour", ordered=True)
    found = Runtime(model)._opened.likelihood
    assert found.share == 0.01
    log_probs = Runtime(model, dtype="float32").log_prob(texts)  # the dtype it is measured in
    assert np.isclose(found.log_prob, np.quantile(log_probs, 0.01), atol=1e-3)
    assert json.loads((model / "fastflow.json").read_text())["likelihood"]["log_prob"] == found.log_prob
    few = make_model(tmp_path / "n", bert, texts[:199], ordered=True)
    linear = make_model(tmp_path / "o", bert, texts, "nullspace", ordered=True)
    assert Runtime(few)._opened.likelihood is Runtime(linear)._opened.likelihood is None
    fit = fastflow.fit(texts, encoder=bert, method="flow", stop="budget")
    assert fit.save(tmp_path / "p") == fit.save(tmp_path / "q")
    assert Runtime(tmp_path / "p")._opened.likelihood is not None


def test_it_is_of_the_rows_given_and_of_enough_of_them():
    x = np.random.default_rng(0).normal(size=(LEAST, 8)).astype(np.float32)
    stages = fit_named("flow", x)
    found = measure_likelihood(stages, x)
    assert found["share"] == SHARE
    wide = [stage.astype(np.float64) for stage in stages]
    below = density_of(stages, "it").log_prob(x.astype(np.float64), wide) < found["log_prob"]
    assert below.sum() == SHARE * LEAST
    assert measure_likelihood(stages, x[1:]) is None
    assert measure_likelihood(fit_named("whiten", x), x) is None


def test_texts_are_taken_from_the_whole_corpus(model, monkeypatch):
    asked = []
    real = Tokenizer.prompted
    monkeypatch.setattr(
        Tokenizer, "prompted", lambda self, texts, *rest: asked.append(list(texts)) or real(self, texts, *rest)
    )
    measure_precision(load_model(model), [f"dog {i}" for i in range(10 * TEXTS + 7)])
    assert len(asked[0]) == TEXTS
    numbers = np.array([int(text.split()[1]) for text in asked[0]])
    assert numbers[0] == 0
    assert numbers[-1] > 9 * TEXTS


def test_nothing_is_known_where_the_kernels_do_not_run_the_encoder(model, monkeypatch):
    monkeypatch.setattr(precision, "pick_backend", lambda encoder, device: "torch")
    assert measure_precision(load_model(model), ["a dog"]) == ({}, None)


def test_the_card_names_the_vectors_and_their_hash():
    stages = [Stage("standardize", {}, {"mean": np.zeros(4), "deviation": np.ones(4)})]
    training = {"vectors_sha256": "0123456789abcdef" + 48 * "f", "source": "v.npy", "vectors": 99, "reasons": ["asked"]}
    isotropy = {"mean_cosine": 0.9, "isoscore": 0.1, "top_share": 0.5}
    card = write_vector_card(stages, training, {"isotropy": {"before": isotropy, "after": isotropy}}, 4)
    lines = ("| input | vectors of 4 numbers |", "| calibration | standardize |", "- asked\n", "embeds no text")
    lines += ("| fitted on | v.npy: 99 vectors (sha256 0123456789abcdef) |", "Of others its output is void")
    assert [line for line in lines if line not in card] == []
    (row,) = (line for line in card.splitlines() if line.startswith("| IsoScore"))
    assert row.count("0.1") == 2
