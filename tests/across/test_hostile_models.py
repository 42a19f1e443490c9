"""Files that lie about numbers: each lie is one sentence that names it, on every backend, before it costs memory."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fastflow import Runtime
from fastflow.backends.choose import open_backend
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model
from fastflow.model.tokens import Tokenizer, Tokens
from fastflow.model.weights import weight_files
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage

from support.builders import POSITIONS, VOCABULARY, make_encoder, vocabulary_only
from support.gpu_standin import use_standin
from support.places import TESTS
from support.spoil import change_arrays, change_manifest

TEXTS = ["the dog sleeps near it.", "two", "she sings quietly"]
DEEP = "[" * 100_000 + "]" * 100_000
NATIVE = ("cpu", "reference")
COUNTS = ("num_attention_heads", "num_hidden_layers", "hidden_size", "max_position_embeddings")


def rewrite(path: Path, change) -> None:
    """Replace a JSON file by what ``change`` makes of its object."""
    tree = json.loads(path.read_text())
    changed = change(tree)
    path.write_text(json.dumps(tree if changed is None else changed))


def set_tensor(directory: Path, name: str, value, at=...) -> None:
    path = directory / "model.safetensors"
    arrays = {key: np.array(array) for key, array in load_file(path).items()}
    arrays[name][at] = value
    save_file(arrays, path, {"format": "pt"})


# ---- token ids


def spoil_vocabulary(tree):
    tree["model"]["vocab"]["dog"] = 10**6


def spoil_added(tree):
    tree["added_tokens"].append(tree["added_tokens"][-1] | {"id": 10**6, "content": "zebra"})


def spoil_template(tree):
    tree["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [len(VOCABULARY)]


@pytest.mark.parametrize("spoil", [spoil_vocabulary, spoil_added, spoil_template])
@pytest.mark.parametrize("name", ["cpu", "reference", "torch", "triton"])
def test_an_id_beyond_the_embedding_table_is_found_at_load(bert_copy, spoil, name, monkeypatch):
    use_standin(monkeypatch)
    rewrite(bert_copy / "tokenizer.json", spoil)
    with pytest.raises(FastflowError, match=f"(ids up to|has 133) .*, more than the {len(VOCABULARY)} of"):
        Runtime(bert_copy, "cuda" if name == "triton" else "cpu", backend=name)


@pytest.mark.parametrize("odd", [len(VOCABULARY), -1, 2**31 - 1])
@pytest.mark.parametrize("name", ["cpu", "reference", "torch", "triton"])
def test_every_backend_refuses_ids_that_it_has_no_row_for(bert, odd, name, monkeypatch):
    use_standin(monkeypatch)
    opened = open_backend(load_model(bert), name, "cuda" if name == "triton" else "cpu", "auto", None)
    tokens = Tokens(np.array([2, 7, 3, 2, odd, 3], np.int32), np.array([0, 3, 6]), np.empty(0, np.int64))
    with pytest.raises(FastflowError, match=r"token id|id outside the vocabulary"):
        opened.pool(tokens)
    with pytest.raises(FastflowError, match=r"token id|id outside the vocabulary"):
        opened.embed(tokens, [np.arange(2)])


# ---- config.json


@pytest.mark.parametrize("value", [-1, -1e-12, 1.5, float("nan"), float("inf"), "1e-12", True, None, []])
def test_an_epsilon_that_is_none(bert_copy, value, backend):
    rewrite(bert_copy / "config.json", lambda tree: {**tree, "layer_norm_eps": value})
    with pytest.raises(FastflowError, match=r"config\.json, field layer_norm_eps: must be a number from 0 to 1"):
        Runtime(bert_copy, backend=backend)


@pytest.mark.parametrize("value", [4.0, 4.9, True, "4", None, [], float("nan"), 2**31, 10**30])
@pytest.mark.parametrize(
    "field", ["num_attention_heads", "num_hidden_layers", "hidden_size", "max_position_embeddings"]
)
def test_numbers_of_things_are_whole(bert_copy, field, value, backend):
    rewrite(bert_copy / "config.json", lambda tree: {**tree, field: value})
    with pytest.raises(FastflowError, match=rf"config\.json, field {field}: (missing or not a whole|must be at most)"):
        Runtime(bert_copy, backend=backend)


@pytest.mark.parametrize("field", ["vocab_size", "type_vocab_size"])
@pytest.mark.parametrize("value", [True, 2.0, "2"])
def test_so_are_the_sizes_of_tables(bert_copy, field, value):
    rewrite(bert_copy / "config.json", lambda tree: {**tree, field: value})
    with pytest.raises(FastflowError, match=rf"config\.json, field {field}: missing or not a whole number"):
        Runtime(bert_copy, backend="reference")


@pytest.mark.parametrize("value", [[], {}, [1], 3, "x" * 5000])
def test_an_activation_that_is_no_name(bert_copy, value):
    rewrite(bert_copy / "config.json", lambda tree: {**tree, "hidden_act": value})
    with pytest.raises(FastflowError, match=r"activation .* is not supported") as raised:
        Runtime(bert_copy, backend="reference")
    assert len(str(raised.value)) < 500


def test_a_table_of_positions_without_room_for_a_text(tmp_path):
    roberta = make_encoder(tmp_path, "roberta")
    rewrite(roberta / "config.json", lambda tree: {**tree, "pad_token_id": POSITIONS + 1})
    with pytest.raises(FastflowError, match="max_position_embeddings: leaves room for 0 tokens"):
        Runtime(roberta)


LIMITED = """
import resource, sys, time
from fastflow import Runtime
from fastflow.backends.choose import open_backend
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
    rewrite(bert_copy / "config.json", lambda tree: {**tree, "num_hidden_layers": 10**7})
    done = run_python(LIMITED, bert_copy, name)
    assert done.returncode == 0, done.stderr
    assert "the weights lack tensor encoder.layer.3." in done.stdout
    assert done.stdout.endswith("soon\n")


@pytest.mark.parametrize(("field", "value"), [("levels", 2**31), ("depth", 10**6), ("levels", 10**18)])
def test_steps_of_a_flow_are_counted_in_the_file(model_copy, run_python, field, value):
    stage = json.loads((model_copy / "fastflow.json").read_text())["calibration"][0]
    change_manifest(model_copy, calibration=[stage | {field: value}])
    done = run_python(LIMITED, model_copy, "reference")
    assert done.returncode == 0, done.stderr
    assert "calibration flow, setting" in done.stdout
    assert done.stdout.endswith("soon\n")


def test_what_only_pytorch_runs_has_no_million_layers(tmp_path):
    albert = make_encoder(tmp_path, "albert")
    rewrite(albert / "config.json", lambda tree: {**tree, "num_hidden_layers": 10**7})
    with pytest.raises(FastflowError, match="num_hidden_layers: must be at most 1000"):
        Runtime(albert)


def test_an_error_of_transformers_own_is_a_sentence(tmp_path):
    albert = make_encoder(tmp_path, "albert")
    rewrite(albert / "config.json", lambda tree: {**tree, "classifier_dropout_prob": "much", "hidden_dropout_prob": []})
    with pytest.raises(FastflowError, match="transformers cannot load this encoder: ") as raised:
        Runtime(albert)
    assert "\n" not in str(raised.value)


# ---- JSON


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_json_nested_too_deep(bert_copy, name):
    (bert_copy / name).write_text('{"x": ' + DEEP + "}")
    with pytest.raises(FastflowError, match=rf"{name} cannot be read"):
        Runtime(bert_copy)


def test_the_other_json_files_nested_too_deep(model_copy, bert_copy, tmp_path):
    (model_copy / "fastflow.json").write_text('{"x": ' + DEEP + "}")
    with pytest.raises(FastflowError, match=r"fastflow\.json cannot be read: its JSON is nested too deep"):
        load_model(model_copy)
    (bert_copy / "model.safetensors.index.json").write_text(DEEP)
    with pytest.raises(FastflowError, match=r"index\.json cannot be read: its JSON is nested too deep"):
        Runtime(bert_copy)
    (tmp_path / "vocabulary").mkdir()
    vocabulary_only(tmp_path / "vocabulary")
    (tmp_path / "vocabulary" / "tokenizer_config.json").write_text(DEEP)
    with pytest.raises(FastflowError, match=r"tokenizer_config\.json cannot be read: its JSON is nested too deep"):
        Tokenizer(tmp_path / "vocabulary", 8)


def test_a_header_nested_too_deep(bert_copy):
    header = ('{"x": ' + DEEP + "}").encode()
    (bert_copy / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(FastflowError, match=r"model\.safetensors is damaged or not safetensors"):
        Runtime(bert_copy)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/hostname", "x" * 5000, ""])
def test_an_index_names_files_beside_it(bert_copy, name):
    (bert_copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(FastflowError, match=r"field weight_map: .* is not the name of a file beside it"):
        weight_files(bert_copy)


def test_a_path_that_the_system_cannot_look_up(model_copy):
    with pytest.raises(FastflowError, match="cannot be opened: File name too long") as raised:
        Runtime("x" * 5000)
    assert len(str(raised.value)) < 200
    change_manifest(model_copy, files={"y" * 5000: "0"})
    with pytest.raises(FastflowError, match="cannot be opened: File name too long"):
        Runtime(model_copy)


@pytest.mark.parametrize("model", [7, b"model", ["model"], 1.5])
def test_a_model_that_is_no_path(model):
    with pytest.raises(UsageError, match="a model is the path of a directory"):
        Runtime(model)


# ---- weights and calibration


@pytest.mark.parametrize("value", [3e38, 1e20, -2e6])
@pytest.mark.parametrize("at", [..., (0, 0)])
@pytest.mark.parametrize("name", ["encoder.layer.1.output.dense.weight", "embeddings.word_embeddings.weight"])
def test_a_weight_that_no_training_makes(bert_copy, name, value, at, backend):
    set_tensor(bert_copy, name, value, at)
    with pytest.raises(FastflowError, match=rf"tensor {name} holds NaN or infinity, or a magnitude above 1e\+06"):
        Runtime(bert_copy, backend=backend)


@pytest.mark.parametrize("name", NATIVE)
def test_a_weight_of_whole_numbers(bert_copy, name):
    path, tensor = bert_copy / "model.safetensors", "encoder.layer.1.output.dense.weight"
    arrays = load_file(path)
    save_file(arrays | {tensor: arrays[tensor].astype(np.int64)}, path, {"format": "pt"})
    with pytest.raises(FastflowError, match=f"tensor {tensor} has dtype int64"):
        Runtime(bert_copy, backend=name)


@pytest.mark.parametrize("layers", [[1, 1], [1, 3, 1], [True], [1.0]])
def test_layers_of_a_pooling_are_different_numbers(model_copy, layers):
    change_manifest(model_copy, pooling={"mode": "mean", "layers": layers})
    with pytest.raises(FastflowError, match=r"fastflow\.json, field pooling: .* does not fit the encoder's 3 layers"):
        load_model(model_copy)


def test_more_stages_than_arrays(model_copy):
    change_manifest(model_copy, calibration=[{"kind": "whiten"}] * 10_000)
    with pytest.raises(FastflowError, match="field calibration: 10000 stages"):
        load_model(model_copy)


def test_a_calibration_that_float32_cannot_hold(model_copy):
    name = "0.levels.0.0.actnorm.shift"
    change_arrays(model_copy, lambda arrays: arrays | {name: np.full(32, 1e300)})
    with pytest.raises(FastflowError, match=r"actnorm\.shift: holds NaN or infinity, or what float32"):
        load_model(model_copy)


def test_a_calibration_that_folds_beyond_float32():
    stage = Stage("whiten", {}, {"mean": np.zeros(4), "matrix": np.eye(4) * 1e13})
    with pytest.raises(FastflowError, match=r"folds to numbers above 1e\+12"):
        fold([stage], 4)


def test_deviations_and_widths_are_above_zero(model_copy):
    zero = {"0.mean": np.zeros(32, np.float32), "0.deviation": np.zeros(32, np.float32)}
    change_arrays(change_manifest(model_copy, calibration=[{"kind": "standardize"}]), lambda _: zero)
    with pytest.raises(FastflowError, match="standardize\\), array deviation: must be above 0"):
        load_model(model_copy)
    none = {"0.mean": np.zeros(32, np.float32), "0.matrix": np.zeros((32, 0), np.float32)}
    change_arrays(change_manifest(model_copy, calibration=[{"kind": "whiten"}], dim=0), lambda _: none)
    with pytest.raises(FastflowError, match="whiten\\), array matrix: leaves no dimension"):
        load_model(model_copy)


@pytest.mark.parametrize("deviation", [-np.ones(32), np.zeros(32)])
def test_deviations_of_directions_give_a_range(model_copy, deviation):
    order = {"truncation.basis": np.eye(32, dtype=np.float32), "truncation.deviation": deviation.astype(np.float32)}
    change_arrays(model_copy, lambda arrays: arrays | order)
    with pytest.raises(FastflowError, match=r"array truncation\.deviation: must be at least 0"):
        load_model(model_copy)


@pytest.mark.parametrize("found", [float("nan"), 7.5, float("inf")])
def test_a_least_cosine_that_is_none_allows_no_bfloat16(model_copy, found):
    change_manifest(model_copy, least_cosine={"bfloat16": found})
    assert Runtime(model_copy, backend="cpu").info()["dtype"] == "float32"


# ---- tokenizers


def write_tokenizer(directory: Path, change) -> Path:
    rewrite(directory / "tokenizer.json", change)
    return directory


def test_an_unknown_word_where_there_is_no_token_for_it(bert_copy):
    def without(tree):
        del tree["model"]["vocab"]["[UNK]"]
        tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] != "[UNK]"]

    runtime = Runtime(write_tokenizer(bert_copy, without), backend="reference")
    assert runtime.encode(["the dog"]).shape == (1, 32)
    with pytest.raises(FastflowError, match=r"the tokenizer cannot take a text: .*\[UNK\]"):
        runtime.encode(["the dog", "\u4e2d\u6587"])


def with_charsmap(directory: Path, charsmap: bytes) -> Path:
    part = {"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap).decode()}
    return write_tokenizer(directory, lambda tree: tree.update(normalizer=part))


def test_a_panic_of_the_tokenizers_library_at_load(bert_copy, capfd):
    with pytest.raises(FastflowError, match=r"tokenizer\.json cannot be read as a tokenizer: Precompiled"):
        Runtime(with_charsmap(bert_copy, b""))
    assert "panicked" in capfd.readouterr().err  # Rust's own, which nothing here can keep back


def test_a_panic_of_the_tokenizers_library_at_a_text(bert_copy, backend):
    empty_trie = (4).to_bytes(4, "little") + bytes(4) + b"abc"
    runtime = Runtime(with_charsmap(bert_copy, empty_trie), backend=backend)
    with pytest.raises(FastflowError, match="the tokenizer cannot take a text: index out of bounds"):
        runtime.encode(["the dog"])
    assert runtime.encode([]).shape == (0, 32)


def test_a_charsmap_that_claims_gigabytes(bert_copy):
    with pytest.raises(FastflowError, match=r"tokenizer\.json cannot be read .* precompiled_charsmap is cut"):
        Runtime(with_charsmap(bert_copy, b"\xff" * 8))


def test_merges_that_are_left_to_chance(tmp_path):
    roberta = make_encoder(tmp_path, "roberta")
    write_tokenizer(roberta, lambda tree: tree["model"].update(dropout=0.1))
    with pytest.raises(FastflowError, match=r"tokenizer\.json, field dropout: must be null"):
        Runtime(roberta)


def test_more_special_tokens_than_a_text_may_have(bert_copy):
    special = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
    write_tokenizer(bert_copy, lambda tree: tree["post_processor"].update(single=[special] * 200))
    with pytest.raises(FastflowError, match="the tokenizer adds 200 tokens to a text, of 128 at most"):
        Runtime(bert_copy)


@pytest.mark.parametrize("settings", [{"do_lower_case": "no"}, {"strip_accents": 1}, {"tokenize_chinese_chars": None}])
def test_settings_of_a_vocabulary_are_true_or_false(tmp_path, settings):
    with pytest.raises(FastflowError, match=rf"field {next(iter(settings))}: must be true or false"):
        Tokenizer(vocabulary_only(tmp_path, **settings), 8)


# ---- in sequence


@pytest.mark.whole
def test_sixty_spoilt_models_give_a_sentence_or_vectors(tmp_path):
    script = TESTS / "attacks" / "models.py"
    command = [sys.executable, script, "--count", "60", "--seconds", "120", "--bases", tmp_path / "bases"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "60  in all, 0 of them findings" in done.stdout
