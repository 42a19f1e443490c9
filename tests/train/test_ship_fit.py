"""A fit in memory: a Runtime without a saved model, its folder, and saving once."""

import gc

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError, UsageError


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
