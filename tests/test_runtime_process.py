"""``Runtime`` in its process: its end, its path, imports, choices that cannot run, overflow, the one compiled call."""

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
from fastflow.errors import FastflowError, UsageError
from fastflow.model.kinds import Prompts
from fastflow.options import prefetch

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


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dtype": "bfloat16", "backend": "reference"}, "usable are float32, float64"),
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


def test_transform_finds_what_overflows(model, backend):
    opened = Runtime(model, backend=backend)
    with pytest.raises(FastflowError, match="transform: row 1 gives NaN or infinity"):
        opened.transform(np.array([np.zeros(32), np.full(32, 3e38)]))


def test_float16_holds_what_is_asked_of_it(model, monkeypatch):
    rt = Runtime(model)
    kind = BACKENDS[rt.backend].load()
    inner = kind.calibrate
    monkeypatch.setattr(kind, "calibrate", lambda *given: 1e5 * inner(*given))
    with pytest.raises(FastflowError, match="precision 'float16' ends at 65504"):
        rt.encode(["a"], precision="float16")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, bert, sentences):
    """A model that one compiled call embeds with: it has no layers, and its calibration has a density."""
    made = make_model(tmp_path_factory.mktemp("whole") / "m", bert, sentences, pooling="words")
    return Runtime(made, "cpu", backend="cpu")


def test_windows_and_scored_windows_take_one_compiled_call(whole, sentences, monkeypatch):
    call, sizes = whole.session._fused, []
    monkeypatch.setattr(whole.session, "_fused", lambda *given: sizes.append(len(given[0])) or call(*given))
    for stream in (whole.stream, whole.stream_with_log_prob):
        assert [block[0] for block in stream(iter(sentences[:72]), window=33, prompt="a dog ")] == [0, 33, 66]
        assert sizes == [33, 33, 6]
        sizes.clear()


def test_a_prompt_that_is_not_pooled_goes_by_steps(whole, sentences, monkeypatch):
    pooled = whole.encode(sentences[:9], prompt="a dog ")
    assert np.array_equal(pooled, whole.encode(["a dog " + text for text in sentences[:9]]))
    monkeypatch.setattr(type(whole.session.model), "prompts", Prompts(pooled=False))
    found = whole.encode(sentences[:9], prompt="a dog ")
    assert (found != pooled).any(axis=1).all()
    assert np.isfinite(found).all()


def test_errors_name_the_text(whole, model):
    for runtime in (whole, Runtime(model)):
        with pytest.raises(FastflowError, match="holds half a surrogate pair"):
            runtime.encode(["the dog", "\ud800"])
        with pytest.raises(FastflowError, match="text 1 is int"):
            runtime.encode(["the dog", 5])
        with pytest.raises(UsageError, match="ranges"):
            runtime.encode(["the dog"], ranges=np.ones((2, 3)))


@pytest.mark.slow
def test_a_closed_model_frees_its_weights(tmp_path, bert, sentences):
    runtime = Runtime(make_model(tmp_path / "m", bert, sentences, "none", pooling="words"), backend="cpu")
    call = weakref.ref(runtime.session._fused)
    runtime.close()
    gc.collect()
    assert call() is None
    with pytest.raises(FastflowError, match="closed"):
        runtime.encode("the dog")


def test_a_table_of_model2vec_is_cut_by_characters_before_the_call(tmp_path):
    """model2vec cuts a long text by characters, and leaves out unknown tokens after it cuts by tokens."""
    runtime = Runtime(model2vec_dir(tmp_path / "m", seq_length=16), "cpu", backend="cpu")
    limit = runtime.session.tokenizer.longest
    texts = ["the dog", "", "z" * limit, "the dog " * limit, "[UNK] the", "日本"]
    with pytest.warns(fastflow.FastflowWarning, match="are cut"):
        found = runtime.encode(texts)
    assert np.array_equal(found, runtime.transform(runtime.pool(texts)))
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
