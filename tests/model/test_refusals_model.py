"""The refusal contract of a saved model: every field, array and file of it that cannot be right, in one sentence."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.model.artifact import load_model
from fastflow.model.verify import verify
from fastflow.plan import fold
from fastflow.transforms.calibration import Stage

from support.builders import VOCABULARY, make_encoder
from support.refusals import DEEP, INF, NAN, refuses, spoil
from support.spoil import change_manifest, rehash

MANIFEST, ARRAYS, INT8 = "fastflow.json", "calibration.safetensors", "int8.safetensors"
MISSING = ("pooling", "max_length", "calibration", "dim", "encoder", "files", "fingerprint")
VERSION = "field format_version: this fastflow reads versions 1 to 3, not"
OUTSIDE = "field files: … lies outside the model"
FLOW = {"kind": "flow", "dim": 32, "levels": 2, "depth": 2, "width": 8}
FLOW |= {"coupling": "additive", "permutation": "reversal"}


def pooled(layers, mode="mean", **more):
    return {"pooling": {"mode": mode, "layers": layers, **more}}


OF_TEXTS = [
    *(({name: value}, f"fastflow.json, field {name}: missing or not")
      for name in MISSING for value in (..., None, 1.5)),
    *(({"max_length": value}, "field max_length") for value in (129, 1, True)),
    ({"dim": 31}, "field dim: says 31, the calibration gives 32"),
    *(({"pooling": value}, "field pooling") for value in ({}, {"mode": "mean"})),
    *((pooled(layers), "field pooling: … does not fit the encoder's 3 layers")
      for layers in ([], [4], [-2], [-1, -1], 3, ["1"], [1, 1], [1, 3, 1], [True], [1.0])),
    *((pooled(layers, mode), "field pooling")
      for mode, layers in (("max", [3]), ("cls", [1, 3]), ("cls", [-1]), ("pooler", [1]))),
    *((pooled([1, 3], mode, shares=shares), "field pooling: … does not fit the encoder's 3 layers")
      for mode, shares in [("mean", [0.5, 0.5]), ("cls-by-shares", [0.5, 0.5]), *(("mean-by-shares", shares)
      for shares in ([0.5], [0.5, 0.6], [1, 0], [2.0, -1.0], [0.5, True], [0.5, float("nan")], "0.5", None, {}))]),
    (pooled([1, 3], "mean-by-shares"), "field pooling: … does not fit the encoder's 3 layers"),
    *(({"calibration": value}, "calibration") for value in ([3], [{}], [{"kind": "flow"}], [FLOW, FLOW])),
    ({"calibration": [{"kind": "magic"}]}, "unknown calibration"),
    ({"calibration": [{"kind": "whiten"}] * 10_000}, "field calibration: 10000 stages"),
    *(({"calibration": [FLOW | {name: value}]}, f"calibration flow, setting {name}")
      for name, value in (("levels", "2"), ("levels", 0), ("coupling", "other"), ("permutation", "other"))),
    *(({"calibration": [FLOW | {name: value}]}, "calibration stage 0 (flow)")
      for name, value in (("depth", 3), ("width", 7), ("coupling", "affine"), ("permutation", "lu"))),
    *(({"files": {name: "0" * 64, ARRAYS: "0"}}, OUTSIDE)
      for name in ("../bert/config.json", "/etc/hostname", "0_Transformer/../../x", "", ".")),
    ({"files": {"y" * 5000: "0"}}, "cannot be opened: File name too long"),
]  # fmt: skip

FIRST = {"format_version": 1, **pooled([1]), "max_length": 64}
NO_WIDTH = "field input_dim: must be a whole number of at least 1"
OF_VECTORS = [
    *(({"encoder": value}, "field encoder: must be null in format version 2")
      for value in (..., {}, {"hub_id": "a/b", "revision": "c"}, False)),
    *(({"input_dim": value}, "field input_dim: missing or not a int") for value in (..., "32", 32.0, None)),
    *(({"input_dim": value}, NO_WIDTH) for value in (True, 0, -32, 10**30)),
    ({"input_dim": 31}, "levels cannot run on 31 dimensions"),
    *(({"input_dim": value}, "calibration stage 0 (flow), array …: shape … does not fit") for value in (64, 2**30)),
    ({"dim": 16}, "field dim: says 16, the calibration gives 32"),
    *(({name: value}, f"field {name}: a model without an encoder has none")
      for name, value in (("pooling", None), *pooled([1]).items(), ("max_length", 64), ("least_cosine", {}))),
    ({"calibration": []}, "field calibration: a model without an encoder needs a stage, and there is none"),
    ({"calibration": ...}, "field calibration: missing or not a list"),
    ({"format_version": 1}, "field pooling: missing or not a dict"),
    *(({"format_version": value}, VERSION) for value in (True, 0, 4, "1", None, ...)),
    (FIRST, "field encoder: missing or not a dict"),
    (FIRST | {"encoder": {}}, "0_Transformer is missing: the model is incomplete"),
]  # fmt: skip

SOUND = {"version": 1, "least_cosine": 0.995, "text": "a dog"}
RECORDED = [
    *(("int8", value, " must hold version, least_cosine, text, not") for value in (None, {}, SOUND | {"more": 1})),
    *(("int8", SOUND | {"version": value}, "version: must be a whole number of at least 1") for value in (0, True)),
    *(("int8", SOUND | {"least_cosine": value}, "least_cosine: must be a number from -1 to 1")
      for value in ("high", NAN, 1.5, True)),
    ("int8", SOUND | {"text": 7}, "text: must be a text, not 7"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "sentence"), OF_TEXTS)
def test_a_field_of_a_model_that_cannot_be(model_copy, fields, sentence):
    change_manifest(model_copy, forge="fingerprint" not in fields, **fields)
    refuses(load_model, model_copy, sentence)


@pytest.mark.parametrize(("fields", "sentence"), OF_VECTORS)
def test_a_field_of_a_model_without_an_encoder_that_cannot_be(vectors_copy, fields, sentence):
    change_manifest(vectors_copy, **fields)
    for opens in (Runtime, verify):
        refuses(opens, vectors_copy, sentence)


@pytest.mark.parametrize(("field", "value", "sentence"), RECORDED)
def test_a_record_that_cannot_be(model_copy, field, value, sentence):
    refuses(load_model, change_manifest(model_copy, **{field: value}), f"fastflow.json, field {field}…{sentence}")


@pytest.mark.parametrize("fields", [{"dim": 16}, {"max_length": 32}, pooled([3])])
def test_an_edited_manifest_is_noticed(model_copy, vectors_copy, fields):
    said = "fastflow.json was changed after it was saved"
    refuses(Runtime, change_manifest(model_copy, forge=False, **fields), said)
    refuses(Runtime, change_manifest(vectors_copy, forge=False, dim=16), said)


# ---- arrays

NAME, SHIFT = "0.levels.1.0.coupling.net.weight2", "0.levels.0.0.actnorm.shift"
ROW = "must be one row of finite float32 from 0 up"
NO_ROWS = [np.float32([1, NAN]), np.float32([1, INF]), np.float32([1, -1]), np.ones(2), np.ones((2, 2), np.float32)]


def edit(name, change):
    return lambda arrays: {**arrays, name: change(np.array(arrays[name]))}


def put(value):
    def change(array):
        array[0, 0] = value
        return array

    return change


WRONG = [
    (ARRAYS, {NAME: ...}, "missing or unknown: levels.1.0.coupling.net.weight2"),
    (ARRAYS, {"0.extra": np.ones(2)}, "missing or unknown: extra"),
    (ARRAYS, edit(NAME, lambda array: array[:-1].copy()), "weight2: shape (7, 8) does not fit (8, 8)"),
    (ARRAYS, edit(NAME, lambda array: array.astype(np.int64)), "weight2: unexpected dtype int64"),
    (ARRAYS, edit(NAME, put(np.nan)), "weight2: holds NaN or infinity"),
    (ARRAYS, edit(NAME, put(np.inf)), "weight2: holds NaN or infinity"),
    (ARRAYS, {SHIFT: np.full(32, 1e300)}, "actnorm.shift: holds NaN or infinity, or what float32"),
    (ARRAYS, b"\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR.", "is damaged or not safetensors"),  # never unpickled
    *((ARRAYS, {"truncation.basis": np.eye(32, dtype=np.float32), "truncation.deviation": np.float32(deviation)},
       "array truncation.deviation: must be at least 0") for deviation in (-np.ones(32), np.zeros(32))),
    (ARRAYS, {"spread": np.zeros(32, np.float32)}, "calibration.safetensors, array spread: must be float32 of shape"),
    *((INT8, {f"{part}.layer.0.up": array}, f"int8.safetensors, array {part}.layer.0.up: {ROW}")
      for part in ("largest", "terms") for array in NO_ROWS),
    *((INT8, {name: array}, f"int8.safetensors, array {name}: must be one row of finite float32, named by the ids of")
      for name, array in (("exact.2,3,3", NO_ROWS[0]), ("exact.2,,3", np.ones(32, np.float32)))),
]  # fmt: skip


@pytest.mark.parametrize(("file", "fault", "sentence"), WRONG)
def test_arrays_that_cannot_be_right(model_copy, file, fault, sentence):
    change_manifest(spoil(model_copy, file, fault), int8=SOUND)
    refuses(load_model, rehash(model_copy), sentence)


ONES = np.ones(len(VOCABULARY), np.float32)
TOKENS = [
    (..., "token_weights is missing"),
    *((wrong, "must be float32 of shape") for wrong in (ONES[1:], ONES.astype(np.float64))),
    *((np.r_[ONES[1:], np.float32(odd)], "must be between 1e-30") for odd in (0, NAN)),
]


@pytest.mark.parametrize(("weights", "sentence"), TOKENS)
def test_token_weights_that_cannot_be(model_copy, weights, sentence):
    change_manifest(spoil(model_copy, ARRAYS, {"token_weights": weights}), **pooled([1, 3], "weighted-mean"))
    refuses(load_model, rehash(model_copy), sentence)


ZERO = np.zeros(32, np.float32)
STAGES = [
    ("standardize", 32, {"0.deviation": ZERO}, "calibration stage 0 (standardize), array deviation: must be above 0"),
    ("whiten", 0, {"0.matrix": np.zeros((32, 0), np.float32)}, "array matrix: leaves no dimension"),
]


@pytest.mark.parametrize(("kind", "dim", "arrays", "sentence"), STAGES)
def test_deviations_and_widths_are_above_zero(model_copy, kind, dim, arrays, sentence):
    change_manifest(model_copy, calibration=[{"kind": kind}], dim=dim)
    refuses(load_model, rehash(spoil(model_copy, ARRAYS, lambda _: arrays | {"0.mean": ZERO})), sentence)


def test_a_calibration_that_folds_beyond_float32():
    stage = Stage("whiten", {}, {"mean": np.zeros(4), "matrix": np.eye(4) * 1e13})
    refuses(lambda stages: fold(stages, 4), [stage], "folds to numbers above 1e+12")


def test_arrays_of_a_model_without_an_encoder(vectors_copy):
    spoil(vectors_copy, ARRAYS, edit("truncation.deviation", lambda array: array * np.nan))
    refuses(Runtime, rehash(vectors_copy), "array truncation.deviation: must be finite")
    spoil(vectors_copy, ARRAYS, lambda arrays: {n: a for n, a in arrays.items() if "truncation" not in n})
    assert Runtime(rehash(vectors_copy)).info()["truncation"] == "first dimensions, in no order"
    spoil(vectors_copy, ARRAYS, lambda arrays: {n: a for n, a in arrays.items() if "shift1" not in n})
    refuses(Runtime, rehash(vectors_copy), "arrays missing or unknown")


# ---- files

FILES = (
    "README.md", ARRAYS, INT8, "0_Transformer/config.json", "0_Transformer/model.safetensors",
    "0_Transformer/tokenizer.json", "0_Transformer/tokenizer_config.json",
)  # fmt: skip


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 1
    path.write_bytes({"truncated": data[:-1], "emptied": b""}.get(how, data))
    if how in ("absent", "a folder"):
        path.unlink()
    if how == "a folder":
        path.mkdir()


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied", "absent", "a folder"])
@pytest.mark.parametrize(("subject", "name"), [*(("model", name) for name in FILES), ("vectors", ARRAYS)])
def test_each_damaged_file_is_named(model_copy, vectors_copy, subject, name, how):
    directory = model_copy if subject == "model" else vectors_copy
    damage(directory / name, how)
    said = f"{name} is missing" if how in ("absent", "a folder") else f"{name} is damaged: its sha256 differs"
    refuses(verify, directory, said)
    if name == "README.md":  # checked by verify alone: a reader may mend its text
        assert Runtime(directory).encode("the dog").shape == (32,)
    else:
        refuses(Runtime, directory, said)


TEXT = [("", "is not JSON"), ("{", "is not JSON"), ("[]", "does not hold a JSON object"), (b"\xff", "is not JSON"),
        (DEEP, "cannot be read: its JSON is nested too deep")]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), TEXT)
def test_a_manifest_that_is_no_manifest(model_copy, text, sentence):
    refuses(load_model, spoil(model_copy, MANIFEST, text), f"fastflow.json…{sentence}")


def files_of(directory):
    return json.loads((directory / MANIFEST).read_text())["files"]


def test_a_file_that_would_change_the_model_must_be_listed(model_copy):
    other = make_encoder(model_copy.parent / "other", seed=9)
    shutil.copy(other / "model.safetensors", model_copy / "0_Transformer" / "other.safetensors")
    names = dict.fromkeys(load_file(other / "model.safetensors"), "other.safetensors")
    spoil(model_copy, "0_Transformer/model.safetensors.index.json", json.dumps({"weight_map": names}))
    refuses(Runtime, model_copy, "0_Transformer/model.safetensors.index.json is not listed")


def test_a_file_that_a_field_needs_must_be_listed(model_copy):
    listed = {name: value for name, value in files_of(model_copy).items() if name != INT8}
    refuses(load_model, change_manifest(model_copy, files=listed), "field int8: int8.safetensors is not listed")


def test_files_of_an_encoder_do_not_belong_to_a_model_without(vectors_copy, bert, model_copy):
    shutil.copytree(bert, vectors_copy / "0_Transformer")
    refuses(Runtime, vectors_copy, "field encoder: says there is none, and …0_Transformer is there; remove it")
    shutil.rmtree(vectors_copy / "0_Transformer")
    change_manifest(vectors_copy, files=files_of(vectors_copy) | {"0_Transformer/config.json": "0"})
    said = "field files: '0_Transformer/…' does not belong to a model without"
    refuses(Runtime, vectors_copy, said)
    gone = dict.fromkeys(("pooling", "max_length", "least_cosine", "int8"), ...)
    refuses(Runtime, change_manifest(model_copy, format_version=2, encoder=None, input_dim=32, **gone), said)


def test_what_is_no_model(tmp_path):
    refuses(load_model, tmp_path / "absent", "absent: no such model directory")
    refuses(load_model, tmp_path, "is not a model: it holds neither fastflow.json nor config.json")
    (tmp_path / "file").write_text("")
    refuses(load_model, tmp_path / "file", "file is not a model")
    refuses(Runtime, "x" * 5000, "cannot be opened: File name too long")
    for model in (7, b"model", ["model"], 1.5):
        with pytest.raises(UsageError, match="a model is the path of a directory"):
            Runtime(model)
