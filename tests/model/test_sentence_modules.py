"""The modules of Sentence Transformers: settings old and new mean the same, and an unknown one is refused by name."""

import json

import pytest

from fastflow.errors import FastflowError
from fastflow.model.sentence_modules import LEGACY_MODES, read_dense, read_normalize, read_pooling, read_transformer

DENSE = {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.linear.Identity"}


def write(folder, name="config.json", **fields):
    (folder / name).write_text(json.dumps(fields))
    return folder


def test_older_and_newer_pooling_settings_are_one(tmp_path):
    for old, mode in LEGACY_MODES.items():
        found, width = read_pooling(write(tmp_path, word_embedding_dimension=8, **{old: True}), 8)
        assert (found.modes, found.include_prompt, width) == ((mode,), True, 8)
        assert read_pooling(write(tmp_path, embedding_dimension=8, pooling_mode=mode), 8)[0] == found
    both = write(tmp_path, pooling_mode_mean_tokens=True, pooling_mode_cls_token=True)
    assert read_pooling(both, 8) == (read_pooling(both, 8)[0], 16)
    assert read_pooling(both, 8)[0].modes == ("cls", "mean")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"embedding_dimension": 9, "pooling_mode": "mean"}, "field embedding_dimension: must be 8"),
        ({"pooling_mode": "median"}, "field pooling_mode: 'median' is unknown; known are cls"),
        ({}, "no pooling mode is chosen"),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, "says cls, and its older fields mean"),
        ({"pooling_mode": "mean", "novel": 1}, "field 'novel': is unknown to this version"),
        ({"pooling_mode": "mean", "include_prompt": "no"}, "field include_prompt: must be true or false"),
    ],
)
def test_pooling_that_cannot_be_obeyed_is_refused_by_field(tmp_path, fields, message):
    with pytest.raises(FastflowError, match=message):
        read_pooling(write(tmp_path, **fields), 8)


def test_a_dense_layer_has_its_own_defaults(tmp_path):
    found = read_dense(write(tmp_path, in_features=8, out_features=4), 8)
    assert (found.activation, found.bias, found.residual, str(found)) == ("tanh", True, False, "Dense (8 to 4, tanh)")
    with pytest.raises(FastflowError, match="field in_features: must be 7, not 8"):
        read_dense(tmp_path, 7)
    for field, value in (("out_features", 0), ("activation_function", "os.system"), ("bias", 1)):
        with pytest.raises(FastflowError, match=f"field {field}: "):
            read_dense(write(tmp_path, **(DENSE | {"activation_function": "torch.nn.Tanh", field: value})), 8)


def test_the_encoder_keeps_its_limit_of_tokens(tmp_path):
    with pytest.raises(FastflowError, match=r"is not an encoder: it has no config\.json"):
        read_transformer(tmp_path)
    write(tmp_path)
    assert read_transformer(tmp_path).max_seq_length is None
    write(tmp_path, "tokenizer_config.json", model_max_length=256)
    assert read_transformer(tmp_path).max_seq_length == 256
    write(tmp_path, "sentence_bert_config.json", max_seq_length=128, do_lower_case=True)
    assert (read_transformer(tmp_path).max_seq_length, read_transformer(tmp_path).do_lower_case) == (128, True)
    write(tmp_path, "sentence_bert_config.json", model_args={"x": 1})
    with pytest.raises(FastflowError, match="field model_args: is not supported"):
        read_transformer(tmp_path)


def test_normalize_may_have_no_folder_of_settings(tmp_path):
    read_normalize(tmp_path)
    with pytest.raises(FastflowError, match="field module_input_name: must be 'sentence_embedding'"):
        read_normalize(write(tmp_path, module_input_name="token_embeddings"))
