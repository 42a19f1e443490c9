"""Reading encoder directories: the forms checkpoints come in, and what is wrong with the ones that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_encoder
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.architecture import encoder_shape, read_config
from fastflow.model.weights import load_weights

TEXTS = ["the dog sleeps near it.", "two", "she sings quietly and the old river turns"]
BACKENDS = ("reference", "torch")
Tensors = dict[str, torch.Tensor]


def rewrite(directory: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """Replace the tensors of a checkpoint by ``change`` of them."""
    path = directory / "model.safetensors"
    tensors = change(load_file(path))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return directory


def reconfigure(directory: Path, **settings: object) -> Path:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))
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


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model_type": "gpt2"}, "architecture 'gpt2' is not supported; supported are bert"),
        ({"model_type": ...}, "architecture None is not supported"),
        ({"hidden_act": "silu"}, "activation 'silu' is not supported"),
    ],
)
def test_an_architecture_that_only_pytorch_may_run(bert_copy, setting, message, backend):
    reconfigure(bert_copy, **setting)
    with pytest.raises(FastflowError, match=message):
        embed(bert_copy, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "only absolute position"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers: missing or not a whole number"),
        ({"vocab_size": ...}, "vocab_size"),
        ({"type_vocab_size": None}, "type_vocab_size"),
        ({"num_attention_heads": 5}, "5 heads"),
        ({"num_attention_heads": 0}, "num_attention_heads: must be at least 1"),
    ],
)
def test_a_configuration_that_cannot_be_run(bert_copy, setting, message, backend):
    reconfigure(bert_copy, **setting)
    with pytest.raises(FastflowError, match=message):
        embed(bert_copy, backend)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "7", "\ufeff{", ""])
def test_a_config_that_is_no_json_object(bert_copy, text):
    (bert_copy / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(FastflowError, match=r"config\.json"):
        embed(bert_copy)


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
