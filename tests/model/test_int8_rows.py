"""Word rows of a BERT stored as int8 with a scale a row."""

import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.exports.export import export
from fastflow.kernels.stored import quantise
from fastflow.model.encoder.weights import SCALES
from fastflow.model.verify import verify

from support.builders import make_sentences

ROWS = "embeddings.word_embeddings.weight"
TEXTS = [*make_sentences(40), "", "a"]


def change(directory, edit):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path.with_suffix(".new"), {"format": "pt"})
    os.replace(path.with_suffix(".new"), path)


@pytest.fixture
def small(bert_copy):
    """The BERT with int8 rows, and its vectors of TEXTS with the same rows in float32."""

    def round_rows(tensors):
        rows, scales = quantise(tensors[ROWS])
        tensors[ROWS] = rows * scales[:, None]

    def store(tensors):
        tensors[ROWS], tensors[SCALES] = quantise(tensors[ROWS])

    change(bert_copy, round_rows)
    with Runtime(bert_copy, backend="reference") as runtime:
        wanted = runtime.encode(TEXTS)
    change(bert_copy, store)
    return bert_copy, wanted


def test_every_backend_reads_them(small, backend):
    directory, wanted = small
    found = Runtime(directory, backend=backend).encode(TEXTS)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    assert verify(directory)


def test_every_instruction_set_reads_them(small, isa, monkeypatch):
    directory, wanted = small
    monkeypatch.setenv("FASTFLOW_ISA", isa)
    np.testing.assert_allclose(Runtime(directory, backend="cpu").encode(TEXTS), wanted, atol=2e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_products_in_fewer_bits(small, dtype):
    directory, wanted = small
    found = Runtime(directory, backend="cpu", dtype=dtype).encode(TEXTS)
    assert (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.999


def test_an_export_has_float_rows(small, tmp_path):
    directory, wanted = small
    export(str(directory), "st", tmp_path / "st", None, False, "float32")
    assert load_file(tmp_path / "st" / "0_Transformer" / "model.safetensors")[ROWS].dtype == np.float32
    np.testing.assert_allclose(Runtime(tmp_path / "st").encode(TEXTS), wanted, atol=2e-6)


def test_a_file_cut_short_is_an_error(small):
    directory, _ = small
    with Runtime(directory, backend="cpu") as runtime:
        os.truncate(directory / "model.safetensors", 4096)
        with pytest.raises(FastflowError, match="the word rows cannot be read: its file was changed"):
            runtime.encode(TEXTS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (SCALES, None, "tensor embeddings.word_embeddings.weight has dtype int8, which no weight has"),
        (SCALES, np.ones(3, np.float32), "tensor embeddings.word_embeddings.scales has shape"),
        (SCALES, "nan", "tensor embeddings.word_embeddings.scales holds NaN or infinity"),
        ("embeddings.LayerNorm.weight", np.ones(32, np.int8), "tensor embeddings.LayerNorm.weight has dtype int8"),
    ],
)
def test_rows_that_do_not_fit_are_refused(small, name, value, message, backend):
    directory, _ = small

    def edit(tensors):
        if value is None:
            del tensors[name]
        else:
            tensors[name] = np.full_like(tensors[name], np.nan) if isinstance(value, str) else value

    change(directory, edit)
    with pytest.raises(FastflowError, match=message):
        Runtime(directory, backend=backend)
