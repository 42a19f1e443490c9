"""The session of a ``Runtime``: its end, its path, imports, overflow, windows, and the one compiled call."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fastflow
from fastflow import Runtime
from fastflow.backends.choose import BACKENDS
from fastflow.errors import FastflowError, FastflowWarning, UsageError
from fastflow.model import Prompts
from fastflow.options import prefetch
from fastflow.values import MOST

from support.builders import make_model
from support.static_dirs import model2vec_dir


def test_pickles_to_its_path(model, tmp_path, monkeypatch, backend):
    monkeypatch.chdir(model.parent)
    data = pickle.dumps(Runtime(model.name, backend=backend))
    assert len(data) < 500
    monkeypatch.chdir(tmp_path)
    copy = pickle.loads(data)
    assert copy.backend == backend
    assert copy.encode("a dog").shape == (32,)


def test_close_lets_go_and_later_use_says_so(model):
    with Runtime(Path(model)) as rt:
        assert rt.encode("a").shape == (32,)
    for use in (lambda: rt.encode("a"), lambda: rt.encode([]), lambda: rt.transform([[0.0] * 32]), rt.info):
        with pytest.raises(FastflowError, match="this Runtime is closed; make a new one"):
            use()
    rt.close()


@pytest.mark.slow
def test_a_closed_model_frees_its_weights(tmp_path, bert, sentences):
    runtime = Runtime(make_model(tmp_path / "m", bert, sentences, "none", pooling="words"), backend="cpu")
    call = weakref.ref(runtime.session._fused)
    runtime.close()
    gc.collect()
    assert call() is None
    with pytest.raises(FastflowError, match="closed"):
        runtime.encode("the dog")


def test_cuda_without_a_device_says_what_is_usable(model):
    import torch

    if torch.cuda.is_available():
        assert Runtime(model, device="cuda").info()["device"] == "cuda"
    else:
        for choice in ({"device": "cuda"}, {"backend": "triton"}, {"backend": "torch", "device": "cuda"}):
            with pytest.raises(FastflowError, match=r"finds no CUDA device; usable here: cpu|needs triton, which"):
                Runtime(model, **choice)


def test_the_package_imports_no_numpy_and_has_no_other_names(run_python):
    code = "import sys, fastflow; fastflow.__version__, dir(fastflow); print({'numpy', 'torch'} & set(sys.modules))"
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        fastflow.Nothing  # noqa: B018


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_squares_that_overflow_in_a_layer_norm_are_no_row_of_biases(bert_copy, name):
    path = bert_copy / "model.safetensors"
    arrays = {key: np.array(array) for key, array in load_file(path).items()}
    for key in arrays:  # each number may be in a file, all together leave float32
        if key.endswith(("dense.weight", "attention.output.LayerNorm.weight")):
            arrays[key] = np.copysign(np.float32(1e6), arrays[key])
    save_file(arrays, path, {"format": "pt"})
    assert np.isfinite(Runtime(bert_copy, backend="reference", dtype="float64").encode(["the dog"])).all()
    opened = Runtime(bert_copy, backend=name)
    for call in (opened.encode, opened.pool):
        with pytest.raises(FastflowError, match="text 0 gives NaN or infinity: the model's numbers leave the range"):
            call(["the dog", "a bird"])


def test_float16_holds_what_is_asked_of_it(model, monkeypatch):
    rt = Runtime(model)
    kind = BACKENDS[rt.backend].load()
    inner = kind.calibrate
    monkeypatch.setattr(kind, "calibrate", lambda *given: 1e5 * inner(*given))
    with pytest.raises(FastflowError, match="precision 'float16' ends at 65504"):
        rt.encode(["a"], precision="float16")


def in_steps(runtime, texts, normalize=False, dim=None, prompt=""):
    session = runtime.session
    return session.embed_tokens(session.tokenize(texts, prompt), normalize, dim)


KINDS = [("words", "flow"), ("words", "none"), ("words", "whiten:7"), ("first-last", "none"), ("first-last", "flow")]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def joined(request, tmp_path_factory, bert, sentences):
    """A model by its pooling and calibration, and whether one compiled call can embed with it."""
    pooling, method = request.param
    made = make_model(tmp_path_factory.mktemp("joined") / "m", bert, sentences, method, pooling=pooling)
    return Runtime(made, "cpu", backend="cpu"), pooling == "words"


def test_one_call_has_the_bits_of_the_steps(joined, sentences):
    runtime, whole = joined
    assert (runtime.session._fused is not None) == whole
    texts = [*sentences[:150], "", "the " * 300]
    want = in_steps(runtime, texts)
    with pytest.warns(FastflowWarning, match="longer than 64 tokens are cut"):
        assert np.array_equal(runtime.encode(texts), want)
    assert runtime.truncated == 1
    assert np.array_equal(runtime.encode(texts[7]), want[7])
    assert np.array_equal(runtime.encode(texts, prompt="a dog "), in_steps(runtime, texts, prompt="a dog "))
    for normalize in (False, True):
        for dim in (None, 5, runtime.dim):
            found = runtime.encode(texts, normalize_embeddings=normalize, truncate_dim=dim)
            assert np.array_equal(found, in_steps(runtime, texts, normalize, dim)), (normalize, dim)
    for dim in (0, runtime.dim + 1):
        with pytest.raises(UsageError, match=f"1 to {runtime.dim}"):
            in_steps(runtime, texts, dim=dim)
    assert runtime.session.backend.batch_tokens >= 1024


def test_errors_name_the_text(joined):
    runtime, _ = joined
    with pytest.raises(FastflowError, match="holds half a surrogate pair"):
        runtime.encode(["the dog", "\ud800"])
    with pytest.raises(FastflowError, match="text 1 is int"):
        runtime.encode(["the dog", 5])
    with pytest.raises(UsageError, match="ranges"):
        runtime.encode(["the dog"], ranges=np.ones((2, 3)))
    assert runtime.encode([]).shape == (0, runtime.dim)


@pytest.fixture(scope="module", params=["words", "table"])
def scored(request, tmp_path_factory, bert, sentences):
    """A model without layers whose calibration has a density; the table cuts long texts by characters."""
    folder = tmp_path_factory.mktemp("scored")
    encoder, most = (bert, 64) if request.param == "words" else (model2vec_dir(folder / "table", width=32), None)
    return Runtime(make_model(folder / "m", encoder, sentences, pooling="words", max_length=most), "cpu", backend="cpu")


@pytest.mark.parametrize("prompt", ["", "a dog "])
def test_windows_take_one_call_each_with_the_bits_of_the_steps(scored, sentences, prompt, monkeypatch):
    texts, session = [*sentences[:70], "", "the " * 300], scored.session
    by_steps = int(session.tokenizer.longest < MOST)  # the last window, for its text of 1,200 characters
    pooled, fused, calls = session.pool_tokens(session.tokenize(texts, prompt)), session._fused, []
    monkeypatch.setattr(session, "_fused", lambda *given: calls.append(len(given[0])) or fused(*given))
    starts, found = zip(*scored.stream(iter(texts), window=33, prompt=prompt), strict=True)
    assert starts == (0, 33, 66)
    assert calls == [33, 33, 6][: 3 - by_steps]
    assert np.array_equal(np.concatenate(found), session.calibrator.calibrate(pooled))


@pytest.mark.parametrize("scored", ["words"], indirect=True)
def test_a_prompt_that_is_not_pooled_goes_by_steps(scored, sentences, monkeypatch):
    texts, pooled = sentences[:9], scored.encode(sentences[:9], prompt="a dog ")
    monkeypatch.setattr(type(scored.session.model), "prompts", Prompts(pooled=False))
    found = scored.encode(texts, prompt="a dog ")
    assert np.array_equal(found, in_steps(scored, texts, prompt="a dog "))
    assert (found != pooled).any(axis=1).all()


def test_a_table_of_model2vec_is_cut_by_characters_before_the_call(tmp_path):
    """model2vec cuts a long text by characters, and leaves out unknown tokens after it cuts by tokens."""
    runtime = Runtime(model2vec_dir(tmp_path / "m", seq_length=16), "cpu", backend="cpu")
    limit = runtime.session.tokenizer.longest
    texts = ["the dog", "", "z" * limit, "the dog " * limit, "[UNK] the", "日本"]
    assert runtime.session._fused is not None
    with pytest.warns(FastflowWarning, match="are cut"):
        found = runtime.encode(texts)
    assert np.array_equal(found, in_steps(runtime, texts))
    assert runtime.truncated >= 1


def test_windows_end_with_their_characters_too(model, sentences, monkeypatch):
    monkeypatch.setattr(fastflow.options, "CHARACTERS", 100)
    blocks = list(Runtime(model, "cpu").stream(iter(sentences[:40])))
    assert len(blocks) > 4
    assert [start for start, _ in blocks] == list(np.cumsum([0, *(len(block) for _, block in blocks[:-1])]))


def test_items_are_made_ahead_in_order_and_one_too_many_at_most():
    assert list(prefetch(iter(range(7)))) == list(range(7))
    assert list(prefetch(iter([]))) == []
    made = [threading.Event() for _ in range(3)]
    for number, _ in enumerate(prefetch(event.set() or event for event in made)):
        assert number + 1 == len(made) or made[number + 1].wait(timeout=20)
    taken: list[int] = []
    source = prefetch(taken.append(number) or number for number in range(100))
    assert next(source) == 0
    source.close()
    assert taken in ([0, 1], [0])
    failing = prefetch(1 / number for number in (1, 0))
    assert next(failing) == 1
    with pytest.raises(ZeroDivisionError):
        next(failing)
