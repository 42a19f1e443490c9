"""Reading encoder directories: the forms checkpoints come in, and what is wrong with the ones that cannot be used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.errors import FastflowError
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
    (bert_copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FastflowError, match="model-00002-of-00002"):
        embed(bert_copy, backend)
    for broken in ("{", "[]", '{"weight_map": 3}', '{"metadata": {}}'):
        index.write_text(broken)
        with pytest.raises(FastflowError, match=r"model\.safetensors\.index\.json"):
            embed(bert_copy, backend)


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


NEEDED = (
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
    "embeddings.LayerNorm.bias",
    "encoder.layer.2.attention.self.key.weight",
    "encoder.layer.0.attention.self.value.bias",
    "encoder.layer.1.attention.output.LayerNorm.weight",
    "encoder.layer.2.output.dense.bias",
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_tensor_is_named(bert_copy, name, backend):
    rewrite(bert_copy, lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name})
    with pytest.raises(FastflowError, match=name):
        embed(bert_copy, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NEEDED)
def test_a_misshapen_tensor_is_named(bert_copy, name, backend):
    rewrite(bert_copy, lambda tensors: tensors | {name: tensors[name][..., :-1]})
    with pytest.raises(FastflowError, match=rf"{name} has shape .* config\.json needs"):
        embed(bert_copy, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_named(bert_copy, value, backend):
    name = "encoder.layer.1.intermediate.dense.bias"
    rewrite(bert_copy, lambda tensors: tensors | {name: tensors[name].index_fill(0, torch.tensor([3]), value)})
    with pytest.raises(FastflowError, match=f"{name} holds NaN or infinity"):
        embed(bert_copy, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_electra_without_its_projection(tmp_path, backend):
    directory = make_encoder(tmp_path, "electra")
    rewrite(directory, lambda tensors: {key: t for key, t in tensors.items() if "embeddings_project" not in key})
    with pytest.raises(FastflowError, match=r"embeddings_project\.weight"):
        embed(directory, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pickle_is_never_opened(bert_copy, backend):
    tensors = load_file(bert_copy / "model.safetensors")
    (bert_copy / "model.safetensors").unlink()
    torch.save(tensors, bert_copy / "pytorch_model.bin")
    with pytest.raises(FastflowError, match=r"no model\.safetensors; convert pytorch_model\.bin"):
        embed(bert_copy, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_weights_name_the_file(bert_copy, backend, keep):
    path = bert_copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FastflowError, match=r"model\.safetensors is damaged"):
        embed(bert_copy, backend)


@pytest.mark.parametrize("row", [0, 40, 80])
def test_a_number_too_large_in_fused_weights_names_their_tensor(encoders, tmp_path, row):
    path = shutil.copytree(encoders("modernbert"), tmp_path / "modernbert")
    weights = load_file(path / "model.safetensors")
    name = next(name for name in weights if name.endswith("layers.1.attn.Wqkv.weight"))
    weights[name][row, 0] = -3e38
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(FastflowError, match=r"tensor layers\.1\.attn\.Wqkv\.weight holds NaN or infinity"):
        Runtime(path, backend="cpu", dtype="float32")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pipe_among_the_shards_of_the_weights_is_not_waited_for(bert_copy, backend):
    tensors = load_file(bert_copy / "model.safetensors")
    names = sorted(tensors)
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    save_file({n: tensors[n] for n in names[::2]}, bert_copy / "model-00001-of-00002.safetensors", {"format": "pt"})
    os.mkfifo(bert_copy / "model-00002-of-00002.safetensors")
    (bert_copy / "model.safetensors").unlink()
    (bert_copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(FastflowError, match=r"model-00002-of-00002\.safetensors .*it is not a file"):
        Runtime(bert_copy, backend=backend)
