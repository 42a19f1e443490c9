"""The refusal contract of Sentence Transformers' directories: each setting is obeyed or refused by file and field."""

from __future__ import annotations

import numpy as np
import pytest

from fastflow.model.artifact import load_model
from fastflow.model.sentence.modules import read_normalize, read_transformer

from support.builders import VOCABULARY
from support.refusals import NAN, copy_of, each, refuses, spoil
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling

OLD = "sentence_transformers.models."
WORDS = ("WordWeights", {"vocab": VOCABULARY, "weights": {"the": 0.25, "dog": 3}, "other": 1.5})
LAYERS = ("WeightedLayerPooling", {"weights": [0.5, 0.0, 2.0]})
NORM = ("LayerNorm", {})
HEADED = [pooling("cls"), dense(8, residual=True), NORMALIZE, NORM]
WEIGHED = [LAYERS, WORDS, pooling("mean")]

MODULES, BERT, SETTINGS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING, DENSE, LAYER_NORM = "1_Pooling/config.json", "2_Dense/config.json", "4_LayerNorm/config.json"
BY_LAYER, BY_WORD = "1_WeightedLayerPooling/config.json", "2_WordWeights/config.json"
WEIGHTS, NORM_WEIGHTS = "2_Dense/model.safetensors", "4_LayerNorm/model.safetensors"


def module(index, **changes):
    """A fault in one entry of modules.json."""
    return lambda entries: entries[index].update(changes)


BEGIN = "must begin with a Transformer and a Pooling"
NO_FOLDER = "config.json is missing: modules.json names its folder as a"
LISTS = [
    *((MODULES, text, "modules.json") for text in ("[", "{}", "[]", "[7]", "[" * 100_000)),
    (MODULES, module(3, type=OLD + "LSTM"), f"module 3, field type: '{OLD}LSTM' is unknown; known"),
    (MODULES, module(3, type="custom_st.Normalize"), "field type: 'custom_st.Normalize' is unknown"),
    (MODULES, module(3, type=OLD + "Dense.Normalize"), "is unknown"),
    (MODULES, module(3, type=7), "module 3, field type: missing or not a text"),
    (MODULES, module(1, path=None), "module 1, field path: missing or not a text"),
    *((MODULES, module(1, path=path), f"module 1, field path: '{shown}' lies outside the directory")
      for path, shown in (("../1_Pooling",) * 2, ("2_Dense/../../x",) * 2, ("/etc",) * 2, ("C:\\x", "C:\\\\x"),
                          ("..\\x", "..\\\\x"), ("\0", "\\x00"), ("\ud800", "\\ud800"))),
    (MODULES, module(1, path="nowhere"), f"nowhere/{NO_FOLDER} Pooling"),
    (MODULES, module(2, path="nowhere"), f"nowhere/{NO_FOLDER} Dense"),
    (MODULES, module(0, path="nowhere"), "nowhere is not an encoder: it has no config.json"),
    (MODULES, module(3, path="2_Dense"), "module 3, field path: '2_Dense' is there twice"),
    (MODULES, module(3, path="./2_Dense/"), "is there twice"),
    (MODULES, module(3, name="2"), "module 3, field name: '2' is there twice"),
    (MODULES, module(3, type=OLD + "Pooling"), "holds 2 modules of the type Pooling, where one can run"),
    (MODULES, module(3, type=OLD + "Transformer"), "holds 2 modules of the type Transformer"),
    (MODULES, module(1, type=OLD + "Dense"), f"{BEGIN}, not with Transformer, Dense"),
    (MODULES, module(2, idx=3), "module 2, field idx: must be 2, its place in the list, not 3"),
    (MODULES, module(0, kwargs=["task"]), "module 0, field kwargs: arguments of a module are not supported"),
    (MODULES, module(0, trust=True), "module 0, field 'trust': is unknown to this version"),
]  # fmt: skip
HEAD_FIELDS = [
    (POOLING, {"pooling_mode_cls_token": False}, "no pooling mode is chosen"),
    (POOLING, {"pooling_mode_cls_token": "yes"}, "field pooling_mode_cls_token: must be true or false, not 'yes'"),
    (POOLING, {"pooling_mode": "median"}, "field pooling_mode: 'median' is unknown; known are cls, max, mean"),
    (POOLING, {"pooling_mode": [["cls"]]}, "field pooling_mode: ['cls'] is unknown"),
    (POOLING, {"pooling_mode": "mean"}, "pooling_mode says mean, and its older fields cls"),
    (POOLING, {"word_embedding_dimension": 64}, "word_embedding_dimension: must be 32, the encoder's, not 64"),
    (POOLING, {"embedding_dimension": 9}, "field embedding_dimension: must be 32"),
    *each(POOLING, "include_prompt", [1, "no"], "field include_prompt: must be true or false"),
    (POOLING, {"pooling_mode_odd": True}, "field 'pooling_mode_odd': is unknown to this version"),
    (DENSE, {"in_features": 64}, "field in_features: must be 32, not 64"),
    (DENSE, {"out_features": 0}, "field out_features: missing or not a whole number above 0: 0"),
    (DENSE, {"activation_function": "os.system"}, "field activation_function: 'os.system' is unknown; known"),
    (DENSE, {"bias": 1}, "field bias: "),
    (DENSE, {"module_input_name": "token_embeddings"}, "module_input_name: must be 'sentence_embedding'"),
    (BERT, {"max_seq_length": "24"}, "field max_seq_length: must be a whole number or null, not '24'"),
    (BERT, {"do_lower_case": "no"}, "field do_lower_case: must be true or false, not 'no'"),
    (BERT, {"transformer_task": "fill-mask"}, "field transformer_task: only 'feature-extraction'"),
    *((BERT, {name: value}, f"field {name}: is not supported")
      for name, value in (("query_length", 32), ("model_args", {"x": 1}))),
    (BERT, {"something": 1}, "field 'something': is unknown"),
    (SETTINGS, {"model_type": "SparseEncoder"}, "field model_type: only SentenceTransformer is supported"),
    (SETTINGS, {"prompts": {"query": 7}}, "field prompts: must be an object of texts"),
    (SETTINGS, {"default_prompt_name": "title"}, "default_prompt_name: 'title' is not the name of a prompt"),
    (SETTINGS, {"similarity_fn_name": "maxsim"}, "field similarity_fn_name: 'maxsim' is unknown"),
    (SETTINGS, {"truncate_dim": 9}, "field truncate_dim: must be 1 to 8, not 9"),
    (SETTINGS, {"something": 1}, "field 'something': is unknown"),
    (LAYER_NORM, {"dimension": 9}, "field dimension: must be 8, not 9"),
    (LAYER_NORM, {"eps": 1}, "field 'eps': is unknown"),
]  # fmt: skip
NO_WEIGHT = "must be 0, or 1e-09 to 1e+30, not"
TOKEN_FIELDS = [
    (BY_WORD, {"vocab": "the"}, "field vocab: must be a list of texts"),
    (BY_WORD, {"vocab": VOCABULARY[:-1]}, "words, and the encoder's vocabulary has"),
    (BY_WORD, {"word_weights": ["the"]}, "field word_weights: must be an object of numbers"),
    *each(BY_WORD, "word_weights", [{"the": weight} for weight in (-1, 1e-12, NAN, True)],
          f"the weight of 'the' {NO_WEIGHT}"),
    (BY_WORD, {"unknown_word_weight": "1"}, f"the weight of 'unknown_word_weight' {NO_WEIGHT}"),
    (BY_WORD, {"odd": 1}, "field 'odd': is unknown"),
    (BY_LAYER, {"word_embedding_dimension": 8}, "word_embedding_dimension: must be 32"),
    *each(BY_LAYER, "num_hidden_layers", [12, ...], "field num_hidden_layers: must be 3, the encoder's"),
    *each(BY_LAYER, "layer_start", [4, ...], "field layer_start: must be 0 to 3, not 4"),
    (BY_LAYER, {"layer_start": 2}, "tensor layer_weights is float32 of shape (3,)"),
    ("config.json", {"output_hidden_states": False}, "output_hidden_states: must be true, or Sentence Transformers"),
]  # fmt: skip
BIAS = np.zeros(8, np.float32)
MODULE_WEIGHTS = [
    *((WEIGHTS, {name: ...}, f"tensor {name} is missing")
      for name in ("linear.weight", "linear.bias", "residual.weight")),
    (WEIGHTS, {"linear.weight": np.zeros((8, 31), np.float32)}, "tensor linear.weight is float32 of shape (8, 31)"),
    (WEIGHTS, {"linear.bias": BIAS + np.float32(NAN)}, "tensor linear.bias holds NaN or infinity"),
    (WEIGHTS, {"linear.bias": BIAS + 1e7}, "tensor linear.bias holds NaN or infinity, or a magnitude"),
    (WEIGHTS, {"linear.bias": BIAS.astype(np.int32)}, "tensor linear.bias is int32 of shape (8,)"),
    (WEIGHTS, {"more": BIAS}, "tensor more is unknown to the module's config.json"),
    *((file, None, "model.safetensors is missing; copy the whole directory") for file in (WEIGHTS, NORM_WEIGHTS)),
]  # fmt: skip


@pytest.fixture(scope="module")
def headed(tmp_path_factory, bert):
    """A head of every kind of module; do not change it."""
    return make_directory(tmp_path_factory.mktemp("headed") / "m", bert, HEADED)


@pytest.fixture(scope="module")
def weighed(tmp_path_factory, bert):
    """Weights of layers and of words; do not change it."""
    return make_directory(tmp_path_factory.mktemp("weighed") / "m", bert, WEIGHED)


@pytest.mark.parametrize(("file", "fault", "sentence"), [*LISTS, *HEAD_FIELDS, *MODULE_WEIGHTS])
def test_a_directory_with_a_head_that_cannot_be_obeyed(headed, tmp_path, file, fault, sentence):
    directory = copy_of(headed, tmp_path / "m", file, fault)
    place = directory if file == MODULES else directory / file  # of modules.json, what it names may lack
    refuses(load_model, directory, f"{place}…{sentence}" if fault is not None else sentence)


@pytest.mark.parametrize(("file", "fault", "sentence"), TOKEN_FIELDS)
def test_weights_of_tokens_that_cannot_be_obeyed(weighed, tmp_path, file, fault, sentence):
    refuses(load_model, copy_of(weighed, tmp_path / "m", file, fault), f"{tmp_path / 'm'}…{sentence}")


CHAINS = [
    ([WORDS, LAYERS, pooling("mean")], BEGIN),  # the weights would be lost, and their sum kept
    ([pooling("mean"), WORDS], "holds 1 modules of the type WordWeights, where one can run"),
    ([LAYERS, LAYERS, pooling("mean")], BEGIN),
    ([WORDS], BEGIN),
    ([("WeightedLayerPooling", {"weights": [1.0, -1.0]}), pooling("mean")], "the sum of layer_weights is 0"),
    ([LAYERS, pooling("mean", "max")], "WeightedLayerPooling over several layers and the pooling mode max cannot"),
]


@pytest.mark.parametrize(("modules", "sentence"), CHAINS)
def test_a_chain_that_cannot_run(tmp_path, bert, modules, sentence):
    refuses(load_model, make_directory(tmp_path / "m", bert, modules), sentence)


@pytest.mark.parametrize("file", [WEIGHTS, NORM_WEIGHTS])
def test_a_pickle_is_never_opened(headed, tmp_path, file):
    pickle = file.replace("model.safetensors", "pytorch_model.bin")
    directory = copy_of(headed, tmp_path / "m", pickle, b"cos\nsystem\n")
    assert load_model(directory).pooled_dim == 8
    said = "is a pickle, which fastflow never opens: convert the directory with"
    refuses(load_model, spoil(directory, file, None), said)


def test_folders_without_settings(tmp_path):
    read_normalize(tmp_path)  # which may have no folder at all
    spoil(tmp_path, "config.json", {"module_input_name": "token_embeddings"})
    refuses(read_normalize, tmp_path, "field module_input_name: must be 'sentence_embedding'")
    refuses(read_transformer, tmp_path / "absent", "is not an encoder: it has no config.json")
