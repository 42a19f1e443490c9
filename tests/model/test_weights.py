"""Reading encoder directories: the forms checkpoints come in. What cannot be used: test_refusals_encoder.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.model.architecture import encoder_shape, read_config
from fastflow.model.weights import load_weights

from support.builders import make_encoder

TEXTS = ["the dog sleeps near it.", "two", "she sings quietly and the old river turns"]


BACKENDS = ("reference", "torch")


Tensors = dict[str, torch.Tensor]


def rewrite(directory: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """Replace the tensors of a checkpoint by ``change`` of them."""
    path = directory / "model.safetensors"
    tensors = change(load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return directory


def embed(directory: Path, backend: str = "reference") -> np.ndarray:
    return Runtime(directory, backend=backend).encode(TEXTS)


def canonical(directory: Path) -> dict[str, np.ndarray]:
    config = read_config(directory)
    return load_weights(directory, config, encoder_shape(config, directory), np.float32)


def gamma_and_beta(tensors: Tensors) -> Tensors:
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(
    "change",
    [
        gamma_and_beta,
        lambda tensors: {f"bert.{name}": tensor for name, tensor in tensors.items()},
        lambda tensors: {f"bert.{name}": tensor for name, tensor in gamma_and_beta(tensors).items()},
        lambda tensors: tensors | {"embeddings.position_ids": torch.arange(128)[None]},
        lambda tensors: {name: tensor for name, tensor in tensors.items() if "pooler" not in name},
    ],
    ids=["gamma and beta", "prefix", "prefix, gamma and beta", "position ids", "no pooler"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_names_of_the_same_weights(bert, bert_copy, change, backend):
    rewrite(bert_copy, change)
    assert np.array_equal(embed(bert_copy, backend), embed(bert, backend))


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert", "electra", "distilbert"])
def test_a_prefix_of_the_family(tmp_path, encoders, family):
    directory = make_encoder(tmp_path, family)
    prefix = {"xlm-roberta": "roberta", "camembert": "roberta"}.get(family, family)
    rewrite(directory, lambda tensors: {f"{prefix}.{name}": tensor for name, tensor in tensors.items()})
    assert np.array_equal(embed(directory), embed(encoders(family)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sharded_weights(bert, bert_copy, backend):
    tensors = load_file(bert_copy / "model.safetensors")
    (bert_copy / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, bert_copy / shard, {"format": "pt"})
    where = {name: shard for shard, held in shards.items() for name in held}
    index = bert_copy / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": where}))
    assert np.array_equal(embed(bert_copy, backend), embed(bert, backend))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_precisions_are_widened_exactly(bert_copy, dtype):
    rounded = load_file(bert_copy / "model.safetensors")
    rounded = {name: tensor.to(dtype) for name, tensor in rounded.items()}
    rewrite(bert_copy, lambda _: rounded)
    found = canonical(bert_copy)
    want = {name: tensor.float().numpy() for name, tensor in rounded.items()}
    assert np.array_equal(found["layer.1.up.weight"], want["encoder.layer.1.intermediate.dense.weight"])
    assert np.array_equal(found["word"].astype(np.float32), want["embeddings.word_embeddings.weight"])
    assert np.array_equal(found["segment"], want["embeddings.token_type_embeddings.weight"][0])
    assert np.abs(embed(bert_copy) - embed(bert_copy, "torch")).max() <= 1e-5
