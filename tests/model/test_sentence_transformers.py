"""Directories of Sentence Transformers: each setting is read or refused by name, and no module is passed over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.hub import PATTERNS
from fastflow.model.sentence_modules import DenseModule, NormalizeModule, PoolingModule
from fastflow.model.sentence_transformers import read_modules
from fastflow.train.data.embeddings import Embedder, open_encoder

from support.builders import hub_cache
from support.sentence_dirs import LEGACY, NEW

OLD = "sentence_transformers.models."
DENSE = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def listed(*kinds: str, new: bool = False, transformer: str = "") -> list[dict[str, Any]]:
    """modules.json of modules in that order."""
    return [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else transformer,
            "type": NEW[kind] if new else OLD + kind,
        }
        for i, kind in enumerate(kinds)
    ]


def edit(path: Path, **changes: Any) -> None:
    """Set fields of a JSON object; None removes one."""
    found = json.loads(path.read_text(encoding="utf-8")) | changes
    write(path, {name: value for name, value in found.items() if value is not None})


@pytest.fixture
def saved(bert_copy: Path) -> Path:
    """What Sentence Transformers saves of an encoder with CLS pooling, Dense and Normalize, by its older names."""
    write(bert_copy / "modules.json", listed("Transformer", "Pooling", "Dense", "Normalize"))
    write(bert_copy / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": True})
    pooling = dict.fromkeys(LEGACY, False) | {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    write(bert_copy / "1_Pooling" / "config.json", pooling | {"include_prompt": False})
    write(bert_copy / "2_Dense" / "config.json", DENSE)
    write(
        bert_copy / "config_sentence_transformers.json",
        {
            "__version__": {"sentence_transformers": "3.0.0"},
            "prompts": {"query": "query: ", "document": None},
            "default_prompt_name": "query",
            "similarity_fn_name": "dot_product",
        },
    )
    return bert_copy


def test_a_directory_of_an_older_release(saved):
    found = read_modules(saved)
    assert found.transformer.directory == saved
    assert (found.transformer.max_seq_length, found.transformer.do_lower_case) == (24, True)
    assert found.pooling == PoolingModule(("cls",), include_prompt=False)
    assert found.after == (DenseModule(saved / "2_Dense", 32, 8, True, "tanh", False), NormalizeModule())
    assert (found.dim, found.similarity, found.truncate_dim) == (8, "dot", None)
    assert (found.prompts, found.default_prompt) == ({"query": "query: "}, "query")


def test_a_directory_of_a_newer_release(bert_copy):
    write(bert_copy / "modules.json", listed("Transformer", "Pooling", "Dropout", "Normalize", "Dense", new=True))
    write(
        bert_copy / "sentence_bert_config.json",
        {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        },
    )
    edit(bert_copy / "tokenizer_config.json", model_max_length=100)
    pooling = {"embedding_dimension": 32, "pooling_mode": ["mean", "cls"], "include_prompt": True}
    write(bert_copy / "1_Pooling" / "config.json", pooling)
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    write(bert_copy / "3_Normalize" / "config.json", names)
    dense = {"in_features": 64, "out_features": 64, "bias": False, "use_residual": True, **names}
    write(
        bert_copy / "4_Dense" / "config.json",
        dense | {"activation_function": "torch.nn.modules.linear.Identity"},
    )
    write(
        bert_copy / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "prompts": {"query": ""},
            "default_prompt_name": None,
            "truncate_dim": 16,
        },
    )
    found = read_modules(bert_copy)
    assert found.transformer.max_seq_length == 100
    assert found.pooling.modes == ("mean", "cls")
    assert found.after == (NormalizeModule(), DenseModule(bert_copy / "4_Dense", 64, 64, False, "identity", True))
    assert (found.dim, found.truncate_dim, found.similarity) == (64, 16, "cosine")


def test_a_directory_without_modules_has_none(bert):
    assert read_modules(bert) is None


def test_a_tokenizer_without_a_limit_has_the_encoders(saved):
    (saved / "sentence_bert_config.json").unlink()
    edit(saved / "tokenizer_config.json", model_max_length=1000000000000000019884624838656)
    assert read_modules(saved).transformer.max_seq_length is None


@pytest.mark.parametrize(("name", "mode"), LEGACY.items())
@pytest.mark.parametrize("style", ["old", "new", "new list"])
def test_each_pooling_mode(saved, name, mode, style):
    values = {"old": {name: True}, "new": {"pooling_mode": mode}, "new list": {"pooling_mode": [mode]}}[style]
    write(saved / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **values})
    assert read_modules(saved).pooling == PoolingModule((mode,), include_prompt=True)


def test_older_modes_concatenate_in_the_order_of_sentence_transformers(saved):
    write(saved / "1_Pooling" / "config.json", dict.fromkeys(reversed(LEGACY), True))
    edit(saved / "2_Dense" / "config.json", in_features=6 * 32)
    order = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    assert read_modules(saved).pooling.modes == order


@pytest.mark.parametrize("name", ["Pooling.Pooling", "pooling.Pooling"])
def test_a_type_may_name_its_module_too(saved, name):
    entries = json.loads((saved / "modules.json").read_text())
    entries[1]["type"] = OLD + name
    write(saved / "modules.json", entries)
    assert read_modules(saved).pooling.modes == ("cls",)


@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (3, {"type": OLD + "LSTM"}, "module 3, field type: 'sentence_transformers.models.LSTM' is unknown; known"),
        (3, {"type": "custom_st.Normalize"}, "field type: 'custom_st.Normalize' is unknown"),
        (3, {"type": "sentence_transformers.models.Dense.Normalize"}, "is unknown"),
        (3, {"type": 7}, "module 3, field type: missing or not a text"),
        (1, {"path": None}, "module 1, field path: missing or not a text"),
        (1, {"path": "../1_Pooling"}, "module 1, field path: '../1_Pooling' lies outside the directory"),
        (1, {"path": "2_Dense/../../x"}, "lies outside the directory"),
        (1, {"path": "/etc"}, "field path: '/etc' lies outside the directory"),
        (1, {"path": "C:\\x"}, "lies outside the directory"),
        (1, {"path": "..\\x"}, "lies outside the directory"),
        (1, {"path": "nowhere"}, "nowhere/config.json is missing: modules.json names its folder as a Pooling"),
        (2, {"path": "nowhere"}, "nowhere/config.json is missing: modules.json names its folder as a Dense"),
        (0, {"path": "nowhere"}, "nowhere is not an encoder: it has no config.json"),
        (3, {"path": "2_Dense"}, "module 3, field path: '2_Dense' is there twice"),
        (3, {"path": "./2_Dense/"}, "is there twice"),
        (3, {"name": "2"}, "module 3, field name: '2' is there twice"),
        (3, {"type": OLD + "Pooling"}, "holds 2 modules of the type Pooling, where one can run"),
        (3, {"type": OLD + "Transformer"}, "holds 2 modules of the type Transformer"),
        (1, {"type": OLD + "Dense"}, "must begin with a Transformer and a Pooling, not with Transformer, Dense"),
        (2, {"idx": 3}, "module 2, field idx: must be 2, its place in the list, not 3"),
        (0, {"kwargs": ["task"]}, "module 0, field kwargs: arguments of a module are not supported"),
        (0, {"trust": True}, "module 0, field 'trust': is unknown to this version"),
    ],
)
def test_modules_json_that_cannot_be_obeyed(saved, index, changes, message):
    entries = json.loads((saved / "modules.json").read_text())
    entries[index] |= changes
    write(saved / "modules.json", entries)
    with pytest.raises(FastflowError, match=r"modules\.json") as caught:
        read_modules(saved)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["[", "{}", "[]", "[7]", "[" * 100_000])
def test_modules_json_that_is_damaged(saved, content):
    (saved / "modules.json").write_text(content)
    with pytest.raises(FastflowError, match=r"modules\.json"):
        read_modules(saved)


POOLING, DENSE_FILE, BERT_FILE = "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (POOLING, {"pooling_mode_cls_token": False}, "no pooling mode is chosen"),
        (POOLING, {"pooling_mode_cls_token": "yes"}, "field pooling_mode_cls_token: must be true or false, not 'yes'"),
        (POOLING, {"pooling_mode": "median"}, "field pooling_mode: 'median' is unknown; known are cls, max, mean"),
        (POOLING, {"pooling_mode": [["cls"]]}, "field pooling_mode: ['cls'] is unknown"),
        (POOLING, {"pooling_mode": "mean"}, "pooling_mode says mean, and its older fields cls"),
        (
            POOLING,
            {"word_embedding_dimension": 64},
            "word_embedding_dimension: must be 32, the encoder's, not 64",
        ),
        (POOLING, {"include_prompt": 1}, "field include_prompt: must be true or false, not 1"),
        (POOLING, {"pooling_mode_odd": True}, "field 'pooling_mode_odd': is unknown"),
        (DENSE_FILE, {"in_features": 64}, "field in_features: must be 32, not 64"),
        (DENSE_FILE, {"out_features": 0}, "field out_features: missing or not a whole number above 0: 0"),
        (DENSE_FILE, {"activation_function": "os.system"}, "field activation_function: 'os.system' is unknown; known"),
        (DENSE_FILE, {"module_input_name": "token_embeddings"}, "module_input_name: must be 'sentence_embedding'"),
        (BERT_FILE, {"max_seq_length": "24"}, "field max_seq_length: must be a whole number or null, not '24'"),
        (BERT_FILE, {"do_lower_case": "no"}, "field do_lower_case: must be true or false, not 'no'"),
        (BERT_FILE, {"transformer_task": "fill-mask"}, "field transformer_task: only 'feature-extraction'"),
        (BERT_FILE, {"query_length": 32}, "field query_length: is not supported"),
        (BERT_FILE, {"something": 1}, "field 'something': is unknown"),
        (SETTINGS, {"model_type": "SparseEncoder"}, "field model_type: only SentenceTransformer is supported"),
        (SETTINGS, {"prompts": {"query": 7}}, "field prompts: must be an object of texts"),
        (SETTINGS, {"default_prompt_name": "title"}, "default_prompt_name: 'title' is not the name of a prompt"),
        (SETTINGS, {"similarity_fn_name": "maxsim"}, "field similarity_fn_name: 'maxsim' is unknown"),
        (SETTINGS, {"truncate_dim": 9}, "field truncate_dim: must be 1 to 8, not 9"),
        (SETTINGS, {"something": 1}, "field 'something': is unknown"),
    ],
)
def test_a_setting_that_cannot_be_obeyed(saved, file, changes, message):
    edit(saved / file, **changes)
    with pytest.raises(FastflowError) as caught:
        read_modules(saved)
    assert str(caught.value).startswith(str(saved / file))
    assert message in str(caught.value)


@pytest.mark.slow
def test_a_fit_on_its_encoder_names_what_it_leaves_out(saved, sentences):
    with pytest.warns(UserWarning, match=r"uses its encoder alone, without Pooling \(cls\), Dense \(32 to 8, tanh\)"):
        fit = fastflow.fit(sentences, saved, "whiten:8", token_weights="none")
    assert fit.runtime().encode("a dog").shape == (8,)


def test_an_encoder_in_a_subfolder_is_found(saved, bert):
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"]
    (saved / "0_Transformer").mkdir()
    for name in names:
        shutil.move(saved / name, saved / "0_Transformer" / name)
    entries = json.loads((saved / "modules.json").read_text())
    entries[0]["path"] = "0_Transformer"
    write(saved / "modules.json", entries)
    found = open_encoder(str(saved), "first-last", None)
    assert found.directory == saved / "0_Transformer"
    plain = Embedder(open_encoder(str(bert), "first-last", None), "cpu")(["a dog sleeps."])
    np.testing.assert_array_equal(Embedder(found, "cpu")(["a dog sleeps."]), plain)
    with pytest.raises(FastflowError, match=r"2_Dense/model\.safetensors is missing"):  # of this fixture
        load_model(saved)


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
