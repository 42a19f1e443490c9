"""``Runtime`` as a citizen of its process: pickles, threads, forks, what is imported, and choices that cannot run."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError


def test_pickles_to_its_path(model, sentences, tmp_path, monkeypatch, backend):
    monkeypatch.chdir(model.parent)
    data = pickle.dumps(Runtime(model.name, backend=backend))
    assert len(data) < 500
    monkeypatch.chdir(tmp_path)
    copy = pickle.loads(data)
    assert copy.backend == backend
    assert np.array_equal(copy.encode(sentences[:5]), Runtime(model, backend=backend).encode(sentences[:5]))


def test_close_lets_go_and_later_use_says_so(model):
    with Runtime(Path(model)) as rt:
        assert rt.encode("a").shape == (32,)
    for use in (lambda: rt.encode("a"), lambda: rt.encode([]), lambda: rt.transform([[0.0] * 32]), rt.info):
        with pytest.raises(FastflowError, match="this Runtime is closed; make a new one"):
            use()
    rt.close()


@pytest.mark.slow
def test_eight_threads_share_one_runtime(model, sentences, backend):
    rt = Runtime(model, backend=backend)
    parts = [sentences[i:64:8] for i in range(8)]
    want, found = [rt.encode(part) for part in parts], [[] for _ in parts]
    start = threading.Barrier(8)

    def work(i: int) -> None:
        start.wait()
        for _ in range(3):
            found[i].append(rt.encode(parts[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for expected, results in zip(want, found, strict=True):
        assert len(results) == 3
        assert all(np.array_equal(result, expected) for result in results)


FORK = """
import os, signal, sys
import numpy as np
from fastflow import Runtime
texts = ["the dog sleeps near it."] * 30 + ["she sings " * n for n in range(1, 30)]
rt = Runtime(sys.argv[1], backend=sys.argv[2], threads=2)
want = rt.encode(texts, normalize_embeddings=True)
child = os.fork()
if not child:
    signal.alarm(60)  # a child that waits for threads it has not inherited would wait for ever
    os._exit(0 if np.abs(rt.encode(texts, normalize_embeddings=True) - want).max() <= 1e-5 else 3)
status = os.waitpid(child, 0)[1]
again = np.abs(rt.encode(texts, normalize_embeddings=True) - want).max() <= 1e-5
sys.exit(f"child {status}, parent {again}" if status or not again else 0)
"""


@pytest.mark.slow
def test_survives_fork(model, backend, run_python):
    done = run_python(FORK, model, backend)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"device": "tpu"}, "unknown device 'tpu'; known are auto, cpu, cuda"),
        ({"backend": "jax"}, "unknown backend 'jax'; known are auto, .*torch"),
        ({"dtype": "int4"}, "unknown dtype 'int4'; known are auto, float32"),
        ({"dtype": "bfloat16", "backend": "reference"}, "usable are float32, float64"),
        ({"threads": 0}, "threads must be a whole number of at least 1, not 0"),
        ({"backend": "reference", "device": "cuda"}, "runs on the CPU"),
        ({"backend": "triton", "device": "cpu"}, "the triton backend runs on a CUDA device"),
    ],
)
def test_choices_that_cannot_run_say_what_can(model, choice, message):
    with pytest.raises(UsageError, match=message):
        Runtime(model, **choice)


def test_cuda_without_a_device_says_what_is_usable(model):
    import torch

    if torch.cuda.is_available():
        assert Runtime(model, device="cuda").info()["device"] == "cuda"
    else:
        for choice in ({"device": "cuda"}, {"backend": "triton"}, {"backend": "torch", "device": "cuda"}):
            with pytest.raises(FastflowError, match=r"finds no CUDA device; usable here: cpu|needs triton, which"):
                Runtime(model, **choice)


IMPORT = """
import sys
import fastflow
assert fastflow.__version__ and "Runtime" in dir(fastflow)
assert not {"numpy", "torch", "transformers", "triton"} & set(sys.modules), "import fastflow"
fastflow.Runtime(sys.argv[1], device="cpu").encode(["the dog"])
assert not {"torch", "transformers", "triton", "scipy", "huggingface_hub"} & set(sys.modules), "embedding on a CPU"
"""


def test_importing_and_embedding_load_no_more_than_they_need(model, run_python):
    done = run_python(IMPORT, model)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_name_of_the_package():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        fastflow.Nothing  # noqa: B018
