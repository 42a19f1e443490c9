"""Directories of Sentence Transformers: what each setting means. What is refused: test_refusals_sentence.py."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import fastflow
from fastflow.cli import main
from fastflow.kernels.encoder import Dense, Norm, Unit
from fastflow.model.artifact import load_model
from fastflow.model.locate import PATTERNS
from fastflow.model.sentence.directory import SETTINGS, SIMILARITIES, read_modules, read_settings
from fastflow.model.sentence.modules import LEGACY_MODES, DenseModule, NormalizeModule, PoolingModule, read_transformer
from fastflow.model.sentence.weights import files_of, read_word_weights
from fastflow.model.verify import verify
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.transforms import vectors

from support.builders import VOCABULARY, hub_cache
from support.refusals import refuses, spoil
from support.sentence_dirs import NORMALIZE, dense, expected, make_directory, pooling

POOLING, BERT = "1_Pooling/config.json", "sentence_bert_config.json"
WORDS = ("WordWeights", {"vocab": VOCABULARY, "weights": {"the": 0.25, "dog": 3}, "other": 1.5})
LAYERS = ("WeightedLayerPooling", {"weights": [0.5, 0.0, 2.0]})
NAMES = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}


@pytest.fixture
def saved(tmp_path, bert):
    """A directory of an older release: CLS pooling, Dense and Normalize."""
    settings = {"prompts": {"query": "query: ", "document": None}, "default_prompt_name": "query"}
    modules = [pooling("cls", include_prompt=False), dense(8), NORMALIZE]
    path = tmp_path / "saved"
    return make_directory(path, bert, modules, length=24, lower=True, similarity_fn_name="dot_product", **settings)


def test_a_directory_of_an_older_release(saved):
    found = read_modules(saved)
    assert found.transformer.directory == saved
    assert (found.transformer.max_seq_length, found.transformer.do_lower_case) == (24, True)
    assert found.pooling == PoolingModule(("cls",), include_prompt=False)
    assert found.after == (DenseModule(saved / "2_Dense", 32, 8, True, "tanh", False), NormalizeModule())
    assert (found.dim, found.similarity, found.truncate_dim) == (8, "dot", None)
    assert (found.prompts, found.default_prompt) == ({"query": "query: "}, "query")


def test_a_directory_of_a_newer_release(tmp_path, bert):
    square = dense(64, "Identity", bias=False, residual=True)
    modules = [pooling("mean", "cls"), ("Dropout", {}), NORMALIZE, square]
    settings = {"model_type": "SentenceTransformer", "prompts": {"query": ""}, "default_prompt_name": None}
    path = make_directory(tmp_path / "m", bert, modules, new=True, length=None, truncate_dim=16, **settings)
    method = {"method": "forward", "method_output_name": "last_hidden_state"}
    task = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    spoil(path, BERT, task | {"modality_config": {"text": method}})
    spoil(path, "tokenizer_config.json", {"model_max_length": 100})
    spoil(path, "4_Dense/config.json", NAMES)
    (path / "3_Normalize").mkdir()
    spoil(path, "3_Normalize/config.json", NAMES)
    found = read_modules(path)
    assert found.transformer.max_seq_length == 100
    assert found.pooling.modes == ("mean", "cls")
    assert found.after == (NormalizeModule(), DenseModule(path / "4_Dense", 64, 64, False, "identity", True))
    assert (found.dim, found.truncate_dim, found.similarity) == (64, 16, "cosine")


def test_a_directory_without_modules_or_settings(bert):
    assert read_modules(bert) is None
    assert read_settings(bert, 4) == {}


def test_the_encoder_keeps_its_limit_of_tokens(tmp_path):
    spoil(tmp_path, "config.json", {})
    for file, fields, limit in (
        ("config.json", {}, None),
        ("tokenizer_config.json", {"model_max_length": 1000000000000000019884624838656}, None),
        ("tokenizer_config.json", {"model_max_length": 256}, 256),
        ("tokenizer_config.json", {"model_max_length": ..., "max_len": 100}, 100),
        (BERT, {"max_seq_length": 128}, 128),
    ):
        assert read_transformer(spoil(tmp_path, file, fields)).max_seq_length == limit


@pytest.mark.parametrize(("name", "mode"), LEGACY_MODES.items())
def test_each_pooling_mode_in_each_release(saved, name, mode):
    wide = {"word_embedding_dimension": 32}
    for fields in ({name: True}, {"pooling_mode": mode}, {"pooling_mode": [mode]}):
        spoil(saved, POOLING, json.dumps(wide | fields))
        assert read_modules(saved).pooling == PoolingModule((mode,), include_prompt=True)


def test_older_modes_concatenate_in_the_order_of_sentence_transformers(saved):
    spoil(saved, POOLING, dict.fromkeys(reversed(LEGACY_MODES), True))
    spoil(saved, "2_Dense/config.json", {"in_features": 6 * 32})
    order = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    assert read_modules(saved).pooling.modes == order


@pytest.mark.parametrize("name", ["Pooling.Pooling", "pooling.Pooling"])
def test_a_type_may_name_its_module_too(saved, name):
    kind = {"type": f"sentence_transformers.models.{name}"}
    assert read_modules(spoil(saved, "modules.json", lambda entries: entries[1].update(kind))).pooling.modes == ("cls",)


def test_a_dense_layer_has_its_own_defaults(saved):
    spoil(saved, "2_Dense/config.json", '{"in_features": 32, "out_features": 8}')
    found = read_modules(saved).after[0]
    assert (found.activation, found.bias, found.residual, str(found)) == ("tanh", True, False, "Dense (32 to 8, tanh)")


@pytest.mark.parametrize(("name", "ours"), SIMILARITIES.items())
def test_similarities_are_known_by_their_functions(tmp_path, name, ours):
    assert read_settings(spoil(tmp_path, SETTINGS, {"similarity_fn_name": name}), 4)["similarity"] == ours
    assert ours in vectors.SIMILARITIES


def test_weights_of_layers_and_words_become_the_pooling(tmp_path, bert):
    found = load_model(make_directory(tmp_path / "m", bert, [LAYERS, WORDS, pooling("mean")]))
    assert (found.pooling.mode, found.pooling.layers, found.pooling.shares) == ("mean", (1, 3), (0.2, 0.8))
    ids = {word: i for i, word in enumerate(VOCABULARY)}
    assert [found.pooling.weights[ids[word]] for word in ("the", "dog", "cat")] == [0.25, 3, 1.5]
    assert found.pooling.describe() == "weighted masked mean of layers 1 (0.2) and 3 (0.8)"
    assert found.modules.names() == ["WeightedLayerPooling (layers 1 to 3)", "WordWeights", "Pooling (mean)"]


def test_a_word_is_sought_in_lower_case_too(tmp_path):
    spoil(tmp_path, "config.json", {"vocab": ["The", "the", "x", "more"], "word_weights": {"the": 2}})
    np.testing.assert_array_equal(read_word_weights(tmp_path, 3), np.float32([2, 2, 1]))


# ---- weights


def test_the_head_in_its_order_and_its_files(tmp_path, bert):
    modules = [pooling("mean"), dense(8, residual=True), ("LayerNorm", {}), ("Dropout", {}), NORMALIZE]
    found = load_model(make_directory(tmp_path / "m", bert, modules))
    assert [type(module) for module in found.head] == [Dense, Norm, Unit]
    assert (found.head[0].activation, found.head[0].residual, found.head[0].projection.shape) == ("tanh", True, (8, 32))
    assert found.pooled_dim == 8
    names = [path.relative_to(tmp_path / "m").as_posix() for path in files_of(found.modules)]
    assert len(names) == len(set(names))
    assert {"config.json", "tokenizer.json", "model.safetensors", "modules.json", BERT, POOLING} <= set(names)
    assert {"2_Dense/config.json", "2_Dense/model.safetensors", "3_LayerNorm/model.safetensors"} <= set(names)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_dtypes_are_widened(saved, dtype):
    weights = saved / "2_Dense" / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(weights).items()}, weights)
    texts = ["the dog sings", "a"]
    assert abs(fastflow.Runtime(saved).encode(texts, prompt="") - expected(saved, texts)).max() <= 2e-6


def test_verify_names_what_was_checked(saved):
    assert verify(saved) == [
        "10 files of Sentence Transformers: every setting is known",
        "modules Pooling (cls), Dense (32 to 8, tanh), Normalize: weights are whole and finite",
        f"fingerprint {load_model(saved).fingerprint}",
    ]
    shown = CliRunner().invoke(main, ["verify", str(saved)])
    assert (shown.exit_code, shown.stdout.splitlines()) == (0, verify(saved))
    refuses(verify, spoil(saved, "tokenizer.json", None), "has no tokenizer")


@pytest.mark.parametrize(
    ("file", "tensor"),
    [("model.safetensors", "encoder.layer.2.output.dense.bias"), ("2_Dense/model.safetensors", "linear.weight")],
)
def test_verify_names_a_weight_that_is_not_finite(saved, file, tensor):
    spoil(saved, file, lambda arrays: {**arrays, tensor: np.full_like(arrays[tensor], np.nan)})
    refuses(verify, saved, f"tensor {tensor} holds NaN")


# ---- its encoder alone, and the Hub


def test_an_encoder_in_a_subfolder_is_found(tmp_path, bert):
    path = make_directory(tmp_path / "m", bert, [pooling("cls"), NORMALIZE], folder="0_Transformer")
    found = open_encoder(str(path), "first-last", None)
    assert found.directory == path / "0_Transformer"
    plain = Embedder(open_encoder(str(bert), "first-last", None), "cpu")(["a dog sleeps."])
    np.testing.assert_array_equal(Embedder(found, "cpu")(["a dog sleeps."]), plain)


def test_the_hub_is_asked_for_modules_and_for_an_encoder_in_a_subfolder():
    from huggingface_hub.utils import filter_repo_objects

    wanted = [
        *("modules.json", "config_sentence_transformers.json", "1_Pooling/config.json", "2_Dense/model.safetensors"),
        *(f"0_Transformer/{name}" for name in ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")),
        *("sentence_bert_config.json", "0_Transformer/sentence_bert_config.json", "tokenizer_config.json"),
    ]
    found = filter_repo_objects([*wanted, "pytorch_model.bin", "onnx/model.onnx"], allow_patterns=PATTERNS)
    assert list(found) == wanted


def test_from_the_hubs_cache_it_is_the_same(saved, tmp_path, monkeypatch):
    hub_cache(tmp_path / "hub", saved, monkeypatch)
    found = open_encoder("someone/tiny", "first-last", None)
    assert found.modules.pooling.modes == ("cls",)
    assert found.revision == "0123456789abcdef0123456789abcdef01234567"
