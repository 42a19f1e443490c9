"""The refusal contract of an encoder's directory: a fault of one file is one sentence, on every backend."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastflow import Runtime

from support.builders import POSITIONS, make_encoder
from support.refusals import DEEP, INF, NAN, copy_of, each, refuses, refuses_to_run, spoil
from support.spoil import change_manifest

NATIVE = ("cpu", "reference")
HEADER = DEEP.encode()
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
COUNTS = ("num_attention_heads", "num_hidden_layers", "hidden_size", "max_position_embeddings")
TABLES = ("vocab_size", "type_vocab_size")
NOT_WHOLE = [4.0, 4.9, True, "4", None, [], NAN]


def counted(field: str, what: str = "missing or not a whole number") -> str:
    return f"config.json, field {field}: {what}"


CONFIGS = [
    *((CONFIG, text, "config.json") for text in ("{", "[1, 2]", "7", "\ufeff{", "")),
    (CONFIG, DEEP, "config.json cannot be read: its JSON is nested too deep"),
    *each(CONFIG, "layer_norm_eps", [-1, -1e-12, 1.5, 10**30, NAN, INF, -INF, "1e-12", True, None, [], {}],
          counted("layer_norm_eps", "must be a number from 0 to 1, not ")),
    *(row for field in COUNTS for row in each(CONFIG, field, NOT_WHOLE, counted(field))),
    *(row for field in COUNTS for row in each(CONFIG, field, [2**31, 10**30], counted(field, "must be at most"))),
    *(row for field in TABLES for row in each(CONFIG, field, [None, True, 2.0, "2"], counted(field))),
    *((CONFIG, {field: ...}, counted(field, "missing")) for field in ("hidden_size", *TABLES)),
    (CONFIG, {"num_attention_heads": 5}, "5 heads"),
    (CONFIG, {"num_attention_heads": 0}, "field num_attention_heads: must be at least 1, not 0"),
    (CONFIG, {"position_embedding_type": "relative_key"}, "field position_embedding_type: only absolute position"),
    ("adapter_config.json", {}, "adapter_config.json: adapters are not supported"),
]  # fmt: skip
OF_PYTORCH = [
    (CONFIG, {"model_type": "gpt2"}, "architecture 'gpt2' is not supported; supported are bert"),
    (CONFIG, {"model_type": ...}, "architecture None is not supported"),
    (CONFIG, {"is_decoder": True}, "field is_decoder: causal attention is not supported"),
    *each(CONFIG, "hidden_act", ["silu", [], {}, [1], 3, "x" * 5000], "activation … is not supported"),
]


@pytest.mark.parametrize(("file", "fault", "sentence"), CONFIGS)
def test_a_configuration_that_cannot_be_run(bert_copy, file, fault, sentence, backend):
    refuses_to_run(spoil(bert_copy, file, fault), sentence, backend)


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_a_field_of_bert_in_a_distilbert(encoders, tmp_path, field, backend):
    path = copy_of(encoders("distilbert"), tmp_path / "copy", CONFIG, {field: 2})
    refuses_to_run(path, f"field {field}: must be absent, or equal to ", backend)


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize(("file", "fault", "sentence"), OF_PYTORCH)
def test_a_configuration_that_only_pytorch_may_run(bert_copy, file, fault, sentence, backend):
    refuses_to_run(spoil(bert_copy, file, fault), sentence, backend)


WORDS = "embeddings.word_embeddings.weight"
OF_OTHERS = [
    ("roberta", CONFIG, {"pad_token_id": POSITIONS + 1}, "max_position_embeddings: leaves room for 0 tokens"),
    # PyTorch alone runs ALBERT
    ("albert", CONFIG, {"num_hidden_layers": 10**7}, "num_hidden_layers: must be at most 1000"),
    ("albert", CONFIG, {"classifier_dropout_prob": "much", "hidden_dropout_prob": []}, "transformers cannot load this"),
    ("albert", WEIGHTS, {WORDS: ...}, f"the weights lack tensor {WORDS}"),
]


@pytest.mark.parametrize(("family", "file", "fault", "sentence"), OF_OTHERS)
def test_an_encoder_of_another_family(tmp_path, family, file, fault, sentence):
    refuses(Runtime, spoil(make_encoder(tmp_path, family), file, fault), sentence)


def test_bounds_of_a_number_belong_to_it(bert_copy):
    for eps in (0, 1, 0.5):
        assert Runtime(spoil(bert_copy, CONFIG, {"layer_norm_eps": eps}), backend="reference").dim == 32


# ---- weights

NEEDED = {
    "bert": [
        "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm.bias",
        "encoder.layer.2.attention.self.key.weight", "encoder.layer.0.attention.self.value.bias",
        "encoder.layer.1.attention.output.LayerNorm.weight", "encoder.layer.2.output.dense.bias",
    ],
    "electra": ["embeddings_project.weight"],
    "mpnet": [
        "encoder.relative_attention_bias.weight", "encoder.layer.2.attention.attn.k.weight",
        "encoder.layer.1.attention.LayerNorm.bias",
    ],
    "modernbert": ["layers.1.attn_norm.weight", "layers.2.mlp.Wi.weight", "final_norm.weight"],
}  # fmt: skip
DENIED = {
    "layers.2.attn.Wqkv.bias": "config.json, field attention_bias, has none",
    "layers.0.mlp.Wo.bias": "config.json, field mlp_bias, has none",
    "layers.3.mlp_norm.bias": "config.json, field norm_bias, has none",
    "final_norm.bias": "config.json, field norm_bias, has none",
    "layers.0.attn_norm.weight": "the first layer of a ModernBERT has no such LayerNorm",
}
DENSE, FUSED = "encoder.layer.1.output.dense.weight", "layers.1.attn.Wqkv.weight"


def without(name):
    return WEIGHTS, {name: ...}, f"the weights lack tensor {name}"


def misshapen(name):
    return WEIGHTS, lambda tensors: {**tensors, name: tensors[name][..., :-1].copy()}, f"{name} has shape"


def with_number(name, value, at=(0,)):
    def fault(tensors):
        tensors[name] = np.array(tensors[name])
        tensors[name][at] = value

    return WEIGHTS, fault, f"tensor {name} holds NaN or infinity, or a magnitude above 1e+06"


def named_only(file):
    return INDEX, json.dumps({"weight_map": {"a": file}}), "field weight_map: … is not the name of a file beside it"


TENSORS = [
    *((family, *fault(name)) for family, names in NEEDED.items() for name in names for fault in (without, misshapen)),
    *(("modernbert", WEIGHTS, {name: np.ones(32, np.float32)}, f"the weights hold tensor {name}, and {why}")
      for name, why in DENIED.items()),
    *(("bert", *with_number(name, value, at)) for name in (DENSE, WORDS) for value in (NAN, INF, 3e38, 1e20, -2e6)
      for at in (..., (0, 0))),
    *(("modernbert", *with_number(FUSED, -3e38, (row, 0))) for row in (0, 40, 80)),
    ("mpnet", CONFIG, {"relative_attention_num_buckets": 64}, "field relative_attention_num_buckets: must be 32"),
    ("bert", WEIGHTS, lambda tensors: {**tensors, DENSE: tensors[DENSE].astype(np.int64)},
     f"tensor {DENSE} has dtype int64"),
    ("bert", WEIGHTS, len(HEADER).to_bytes(8, "little") + HEADER, "model.safetensors is damaged or not safetensors"),
    *(("bert", INDEX, text, INDEX) for text in ("{", "[]", '{"weight_map": 3}', '{"metadata": {}}')),
    ("bert", INDEX, DEEP, "index.json cannot be read: its JSON is nested too deep"),
    *(("bert", *named_only(file))
      for file in ("../model.safetensors", "/etc/hostname", "x" * 5000, "", "\0", "\ud800")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "file", "fault", "sentence"), TENSORS)
def test_weights_that_cannot_be_used(encoders, tmp_path, family, file, fault, sentence, backend):
    refuses_to_run(copy_of(encoders(family), tmp_path / family, file, fault), sentence, backend)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_weights_that_are_cut(bert_copy, keep, backend):
    whole = (bert_copy / WEIGHTS).read_bytes()
    refuses_to_run(spoil(bert_copy, WEIGHTS, whole[:keep]), "model.safetensors is damaged", backend)


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
def test_a_pickle_is_never_opened(encoders, tmp_path, family, backend):
    directory = copy_of(encoders(family), tmp_path / family, WEIGHTS, None)
    torch.save(load_file(encoders(family) / WEIGHTS), directory / "pytorch_model.bin")
    refuses_to_run(directory, "no model.safetensors; convert pytorch_model.bin", backend)


@pytest.mark.parametrize("second", ["absent", "a pipe"])
def test_a_shard_that_cannot_be_read(bert_copy, second, backend):
    tensors = load_file(bert_copy / WEIGHTS)
    names = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    first, other = sorted(set(names.values()))
    save_file({name: tensors[name] for name in tensors if names[name] == first}, bert_copy / first)
    if second == "a pipe":  # which nobody writes: it is not waited for
        os.mkfifo(bert_copy / other)
    spoil(spoil(bert_copy, WEIGHTS, None), INDEX, json.dumps({"weight_map": names}))
    said = {"absent": "model-00002-of-00002", "a pipe": "model-00002-of-00002.safetensors …it is not a file"}
    refuses_to_run(bert_copy, said[second], backend)


LIMITED = """
import resource, sys, time
from fastflow import Runtime
from fastflow.errors import FastflowError
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
start = time.process_time()
try:
    Runtime(sys.argv[1], "cpu", "float32", 1, backend=sys.argv[2])
except FastflowError as error:
    print(error)
print("soon" if time.process_time() - start < 5 else "late")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
def test_layers_are_counted_in_the_file_before_any_table_is_made(bert_copy, run_python, name):
    done = run_python(LIMITED, spoil(bert_copy, CONFIG, {"num_hidden_layers": 10**7}), name)
    assert done.returncode == 0, done.stderr
    assert "the weights lack tensor encoder.layer.3." in done.stdout
    assert done.stdout.endswith("soon\n")


@pytest.mark.parametrize(("field", "value"), [("levels", 2**31), ("depth", 10**6), ("levels", 10**18)])
def test_steps_of_a_flow_are_counted_in_the_file(model_copy, run_python, field, value):
    stage = json.loads((model_copy / "fastflow.json").read_text())["calibration"][0]
    done = run_python(LIMITED, change_manifest(model_copy, calibration=[stage | {field: value}]), "reference")
    assert done.returncode == 0, done.stderr
    assert "calibration flow, setting" in done.stdout
    assert done.stdout.endswith("soon\n")
