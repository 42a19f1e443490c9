"""Weights of modules: read from safetensors alone, whole, finite, and of the sizes that their settings say."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import fastflow
from fastflow.errors import FastflowError
from fastflow.kernels.encoder.texts import Dense, Norm, Unit
from fastflow.model.artifact import load_model
from fastflow.model.sentence_weights import files_of

from support.sentence_dirs import NORMALIZE, dense, expected, make_directory, pooling


@pytest.fixture
def saved(tmp_path, bert):
    modules = [pooling("mean"), dense(8, residual=True), ("LayerNorm", {}), ("Dropout", {}), NORMALIZE]
    return make_directory(tmp_path / "m", bert, modules)


def change(path, drop=(), **tensors):
    found = load_file(path) | tensors
    save_file({name: tensor for name, tensor in found.items() if name not in drop}, path)


def test_the_head_in_its_order(saved):
    head = load_model(saved).head
    assert [type(module) for module in head] == [Dense, Norm, Unit]
    assert (head[0].activation, head[0].residual, head[0].projection.shape) == ("tanh", True, (8, 32))
    assert load_model(saved).pooled_dim == 8


def test_the_files_of_a_directory(saved):
    names = [path.relative_to(saved).as_posix() for path in files_of(load_model(saved).modules)]
    assert len(names) == len(set(names))
    assert {"config.json", "tokenizer.json", "model.safetensors", "modules.json"} <= set(names)
    assert {"1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"} <= set(names)
    assert {"3_LayerNorm/model.safetensors", "sentence_bert_config.json"} <= set(names)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_dtypes_are_widened(saved, dtype):
    weights = saved / "2_Dense" / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(weights).items()}, weights)
    texts = ["the dog sings", "a"]
    assert abs(fastflow.Runtime(saved).encode(texts) - expected(saved, texts)).max() <= 2e-6


@pytest.mark.parametrize(
    ("tensors", "drop", "message"),
    [
        ({}, ["linear.weight"], "tensor linear.weight is missing"),
        ({}, ["linear.bias"], "tensor linear.bias is missing"),
        ({}, ["residual.weight"], "tensor residual.weight is missing"),
        ({"linear.weight": torch.zeros(8, 31)}, [], "tensor linear.weight is float32 of shape (8, 31)"),
        ({"linear.bias": torch.full((8,), torch.nan)}, [], "tensor linear.bias holds NaN or infinity"),
        ({"linear.bias": torch.full((8,), 1e7)}, [], "tensor linear.bias holds NaN or infinity, or a magnitude"),
        ({"linear.bias": torch.zeros(8, dtype=torch.int32)}, [], "tensor linear.bias is int32 of shape (8,)"),
        ({"more": torch.zeros(1)}, [], "tensor more is unknown to the module's config.json"),
    ],
)
def test_weights_that_cannot_be_used(saved, tensors, drop, message):
    change(saved / "2_Dense" / "model.safetensors", drop, **tensors)
    with pytest.raises(FastflowError) as caught:
        load_model(saved)
    assert str(caught.value).startswith(str(saved / "2_Dense" / "model.safetensors"))
    assert message in str(caught.value)


@pytest.mark.parametrize("folder", ["2_Dense", "3_LayerNorm"])
def test_a_pickle_is_never_opened(saved, folder):
    weights = saved / folder / "model.safetensors"
    (saved / folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    load_model(saved)
    weights.unlink()
    with pytest.raises(FastflowError, match="is a pickle, which fastflow never opens: convert the directory with"):
        load_model(saved)
    (saved / folder / "pytorch_model.bin").unlink()
    with pytest.raises(FastflowError, match=r"model\.safetensors is missing; copy the whole directory"):
        load_model(saved)


def test_a_layer_norm_of_another_width(saved):
    where = saved / "3_LayerNorm" / "config.json"
    where.write_text('{"dimension": 9}')
    with pytest.raises(FastflowError, match="field dimension: must be 8, not 9"):
        load_model(saved)
    where.write_text('{"dimension": 8, "eps": 1}')
    with pytest.raises(FastflowError, match="field 'eps': is unknown"):
        load_model(saved)
