"""Encoders that only PyTorch runs: ``auto`` takes it and says so, a named backend refuses."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModel

from fastflow import Runtime
from fastflow.backends import choose as choice
from fastflow.backends.choose import BACKENDS, OF_VECTORS
from fastflow.errors import FastflowError, UnsupportedArchitecture, UsageError
from fastflow.model.artifact import load_model
from fastflow.model.encoder import encoder_size, read_config

from support.builders import OTHERS, POSITIONS, make_encoder, make_model, make_sentences


@pytest.fixture(scope="module", params=OTHERS)
def other(request, tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
def test_auto_runs_it_through_pytorch_and_says_why(other, tmp_path):
    texts = [*make_sentences(9), "", "x " * 300]
    runtime = Runtime(other)
    assert (runtime.backend, runtime.info()["max_length"]) == ("torch", POSITIONS)
    assert any(note.startswith("stepped down from the cpu backend: ") for note in runtime.info()["notes"])
    with pytest.warns(UserWarning, match="longer than 128 tokens"):
        found = runtime.encode(texts)
    model = AutoModel.from_pretrained(other).eval()
    for text, vector in zip(texts, found, strict=True):
        ids = torch.from_numpy(runtime.tokenizer([text]).ids.astype(np.int64))[None]
        with torch.inference_mode():
            want = model(input_ids=ids).last_hidden_state[0].mean(0).numpy()
        assert np.abs(vector - want).max() <= 2e-5 * np.abs(want).max()
    assert Runtime(other, dtype="float64").encode(texts[:2]).dtype == np.float64
    trained = Runtime(make_model(tmp_path / "model", other, make_sentences(80)))
    assert trained.backend == "torch"
    assert np.isfinite(trained.encode(texts)).all()


def test_who_cannot_run_it_refuses(other, monkeypatch):
    for backend in ("cpu", "reference"):
        with pytest.raises(UnsupportedArchitecture, match="is not supported"):
            Runtime(other, backend=backend)
    with pytest.raises(UsageError, match="dtype 'int8' does not run on the torch backend"):
        Runtime(other, dtype="int8")
    monkeypatch.setattr(choice, "find_spec", lambda name: None if name == "torch" else object())
    install = r"is not supported.*run pip install torch transformers"
    with pytest.raises(FastflowError, match=install):
        Runtime(other)


NAME = "encoder.layer.1.output.dense.weight"


def spoilt(directory, family, damage):
    """An encoder whose tensor NAME is damaged."""
    path = make_encoder(directory, family) / "model.safetensors"
    tensors = {key: np.array(array) for key, array in load_file(path).items()}
    damage(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return directory


def holds(value):
    return lambda tensors: tensors[NAME][0].__setitem__(3, value)


@pytest.mark.parametrize(
    ("family", "damage", "message"),
    [
        ("longformer", lambda tensors: tensors.pop(NAME), "the weights lack tensor {}"),
        ("longformer", holds(np.nan), "tensor {} holds NaN or infinity"),
        ("bert", holds(np.nan), "tensor {} holds NaN or infinity"),
        ("bert", holds(np.inf), "tensor {} holds NaN or infinity"),
    ],
)
def test_spoilt_weights_are_named_in_every_precision(tmp_path, family, damage, message):
    path = spoilt(tmp_path, family, damage)
    for backend in ("auto", "cpu")[: 1 + (family == "bert")]:
        for dtype in ("float32", "bfloat16", "int8") if family == "bert" else ("auto",):
            with pytest.raises(FastflowError, match=message.format(NAME)):
                Runtime(path, backend=backend, dtype=dtype)


def test_damaged_weights_and_unknown_architectures_are_one_sentence(tmp_path):
    make_encoder(tmp_path, "longformer")
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{broken")
    changed = read_config(tmp_path)
    for config in (changed, {**changed, "model_type": "made-up"}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(FastflowError, match="transformers cannot load this encoder: "):
            Runtime(tmp_path)
    with pytest.raises(FastflowError, match="field num_hidden_layers: missing"):
        encoder_size({"model_type": "gpt2"}, tmp_path)


@pytest.mark.parametrize("kind", [*BACKENDS.values(), *OF_VECTORS.values()], ids=lambda kind: kind.name)
def test_the_table_of_kinds_has_the_dtypes_of_their_classes(kind):
    assert kind.load().dtypes == kind.dtypes


@pytest.mark.parametrize(
    ("gpu", "dtype", "chosen"),
    [(True, "auto", "triton"), (True, "bfloat16", "triton"), (True, "int8", "cpu"), (True, "float64", "reference"),
     (False, "auto", "cpu"), (False, "float64", "reference")],
)  # fmt: skip
def test_auto_takes_a_gpu_that_has_the_dtype(bert, monkeypatch, gpu, dtype, chosen):
    monkeypatch.setattr(choice, "_sees_gpu", lambda: gpu)
    monkeypatch.setattr(choice, "_open_named", lambda name, *_: name)
    assert choice.open_backend(load_model(bert), "auto", "auto", dtype, 1) == chosen


@pytest.mark.slow
def test_opening_a_model_imports_no_backend_but_its_own(run_python):
    done = run_python(
        "import sys, fastflow\nfastflow.Runtime(device='cpu', dtype='float32').encode('a')\nprint(*sys.modules)"
    )
    assert done.returncode == 0, done.stderr
    found = {name for name in done.stdout.split() if name.startswith("fastflow.backends.")}
    assert "fastflow.backends.cpu" in found
    assert not {f"fastflow.backends.{name}" for name in ("triton", "torch", "gpu")} & found
