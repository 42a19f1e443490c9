"""The model directory: what was saved loads, and whatever is wrong with it is named."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from builders import make_encoder, make_model
from click.testing import CliRunner
from safetensors.numpy import load_file
from spoil import change_arrays, change_manifest, rehash

from fastflow import Runtime
from fastflow.cli import main
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model, verify
from fastflow.model.hashing import encoder_hash
from fastflow.model.hub import hub_snapshot

FILES = (
    "README.md", "calibration.safetensors", "0_Transformer/config.json", "0_Transformer/model.safetensors",
    "0_Transformer/tokenizer.json", "0_Transformer/tokenizer_config.json",
)  # fmt: skip
LOADED = FILES[1:]  # the card is checked by verify alone: a reader may mend its text


def test_a_saved_model_is_what_the_contract_says(model):
    manifest = json.loads((model / "fastflow.json").read_text())
    assert sorted(manifest["files"]) == sorted(FILES)
    held = {str(p.relative_to(model)) for p in model.rglob("*") if p.is_file()}
    assert held == {*FILES, "fastflow.json"}
    assert manifest["format_version"] == 1
    assert manifest["pooling"] == {"mode": "mean", "layers": [1, 3]}
    assert (manifest["dim"], manifest["max_length"]) == (32, 64)
    assert [entry["kind"] for entry in manifest["calibration"]] == ["flow"]
    assert manifest["encoder"] == {"sha256": encoder_hash(model / "0_Transformer")}
    assert [word for line in verify(model) for word in line.split()][:2] == ["6", "files"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied", "absent", "a folder"])
def test_each_damaged_file_is_named(model_copy, name, damage):
    path = model_copy / name
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage in ("truncated", "emptied"):
        path.write_bytes(data[: len(data) - 1 if damage == "truncated" else 0])
    else:
        path.unlink()
        if damage == "a folder":
            path.mkdir()
    message = "is missing" if damage in ("absent", "a folder") else "is damaged: its sha256 differs"
    with pytest.raises(FastflowError, match=rf"{name} {message}"):
        verify(model_copy)
    if name in LOADED:
        with pytest.raises(FastflowError, match=rf"{name} {message}"):
            Runtime(model_copy)
    else:
        assert Runtime(model_copy).encode("the dog").shape == (32,)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is not JSON"), ("{", "is not JSON"), ("[]", "does not hold a JSON object"), ("\xff", "is not JSON")],
)
def test_a_manifest_that_is_no_manifest(model_copy, text, message):
    (model_copy / "fastflow.json").write_bytes(text.encode("latin1"))
    with pytest.raises(FastflowError, match=rf"fastflow\.json.*{message}"):
        load_model(model_copy)


@pytest.mark.parametrize("field", [{"dim": 16}, {"max_length": 32}, {"pooling": {"mode": "mean", "layers": [3]}}])
def test_an_edited_manifest_is_noticed(model_copy, field):
    change_manifest(model_copy, forge=False, **field)
    with pytest.raises(FastflowError, match=r"fastflow\.json was changed after it was saved"):
        load_model(model_copy)


@pytest.mark.parametrize("version", [0, 3, "1", None, ...])
def test_another_version_is_refused_before_anything_else(model_copy, version):
    change_manifest(model_copy, forge=False, format_version=version)
    with pytest.raises(FastflowError, match="field format_version: this fastflow reads versions 1 and 2"):
        load_model(model_copy)


@pytest.mark.parametrize("field", ["pooling", "max_length", "calibration", "dim", "encoder", "files", "fingerprint"])
@pytest.mark.parametrize("value", [..., None, 1.5])
def test_a_missing_or_mistyped_field_is_named(model_copy, field, value):
    change_manifest(model_copy, forge=field != "fingerprint", **{field: value})
    with pytest.raises(FastflowError, match=rf"fastflow\.json, field {field}: missing or not"):
        load_model(model_copy)


FLOW = {"kind": "flow", "dim": 32, "levels": 2, "depth": 2, "width": 8} | {
    "coupling": "additive", "permutation": "reversal",
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_length", 129), ("max_length", 1), ("max_length", True), ("dim", 31), ("pooling", {}),
        ("pooling", {"mode": "mean"}), ("pooling", {"mode": "mean", "layers": []}),
        ("pooling", {"mode": "mean", "layers": [4]}), ("pooling", {"mode": "mean", "layers": [-1]}),
        ("pooling", {"mode": "mean", "layers": 3}), ("pooling", {"mode": "mean", "layers": ["1"]}),
        ("pooling", {"mode": "max", "layers": [3]}), ("pooling", {"mode": "cls", "layers": [1, 3]}),
        ("pooling", {"mode": "pooler", "layers": [1]}), ("calibration", [3]), ("calibration", [{}]),
        ("calibration", [{"kind": "flow"}]), ("calibration", [{"kind": "magic"}]),
        ("calibration", [FLOW | {"levels": "2"}]), ("calibration", [FLOW | {"levels": 0}]),
        ("calibration", [FLOW | {"depth": 3}]), ("calibration", [FLOW | {"width": 7}]),
        ("calibration", [FLOW | {"coupling": "affine"}]), ("calibration", [FLOW | {"coupling": "other"}]),
        ("calibration", [FLOW | {"permutation": "lu"}]), ("calibration", [FLOW | {"permutation": "other"}]),
        ("calibration", [FLOW, FLOW]), ("files", {"calibration.safetensors": 3}),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused_by_field(model_copy, field, value):
    change_manifest(model_copy, **{field: value})
    message = f"field {field}|calibration stage|calibration flow|unknown calibration|is damaged: its sha256"
    with pytest.raises(FastflowError, match=message):
        load_model(model_copy)


@pytest.mark.parametrize("name", ["../bert/config.json", "/etc/hostname", "0_Transformer/../../x", "", "."])
def test_file_names_stay_inside_the_model(model_copy, name):
    files = json.loads((model_copy / "fastflow.json").read_text())["files"]
    change_manifest(model_copy, files={name: "0" * 64, **files})
    with pytest.raises(FastflowError, match=r"field files: .* lies outside the model"):
        load_model(model_copy)


def test_a_file_that_would_change_the_model_must_be_listed(model_copy):
    other = make_encoder(model_copy.parent / "other", seed=9)
    shutil.copy(other / "model.safetensors", model_copy / "0_Transformer" / "other.safetensors")
    index = model_copy / "0_Transformer" / "model.safetensors.index.json"
    names = load_file(other / "model.safetensors")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "other.safetensors")}))
    with pytest.raises(FastflowError, match=r"0_Transformer/model\.safetensors\.index\.json is not listed"):
        Runtime(model_copy)


def test_verify_refuses_unlisted_files(model_copy):
    (model_copy / "0_Transformer" / "modeling.py").write_text("raise SystemExit")
    assert load_model(model_copy).max_length == 64  # never read, never run
    with pytest.raises(FastflowError, match=r"does not list: 0_Transformer/modeling\.py"):
        verify(model_copy)


NAME = "0.levels.1.0.coupling.net.weight2"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {k: v for k, v in a.items() if k != NAME}, r"missing or unknown: levels\.1\.0\.coupling.*weight2"),
        (lambda a: a | {"0.extra": a[NAME]}, "missing or unknown: extra"),
        (lambda a: a | {NAME: a[NAME][:-1].copy()}, r"weight2: shape \(7, 8\) does not fit \(8, 8\)"),
        (lambda a: a | {NAME: a[NAME].astype(np.int64)}, "weight2: unexpected dtype int64"),
        (lambda a: a | {NAME: np.where(np.eye(8) > 0, np.nan, a[NAME])}, "weight2: holds NaN or infinity"),
        (lambda a: a | {NAME: np.where(np.eye(8) > 0, np.inf, a[NAME])}, "weight2: holds NaN or infinity"),
    ],
)
def test_wrong_arrays_are_named(model_copy, change, message):
    change_arrays(model_copy, change)
    with pytest.raises(FastflowError, match=message):
        load_model(model_copy)


def test_calibration_that_is_not_safetensors_is_never_unpickled(model_copy):
    (model_copy / "calibration.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    with pytest.raises(FastflowError, match=r"calibration\.safetensors is damaged or not safetensors"):
        load_model(rehash(model_copy))


def test_a_model_of_links_loads(model, tmp_path):
    for path in model.rglob("*"):
        if path.is_file():
            link = tmp_path / "links" / path.relative_to(model)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    assert Runtime(tmp_path / "links").fingerprint == Runtime(model).fingerprint


def test_what_is_no_model(tmp_path):
    with pytest.raises(FastflowError, match="absent: no such model directory"):
        load_model(tmp_path / "absent")
    with pytest.raises(FastflowError, match=r"is not a model: it holds neither fastflow\.json nor config\.json"):
        load_model(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FastflowError, match="file is not a model"):
        load_model(tmp_path / "file")


@pytest.fixture
def hub(tmp_path, monkeypatch, bert):
    """A hub cache that holds ``bert`` as someone/tiny at one revision; nothing else can be reached."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    revision = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(bert, root / "snapshots" / revision)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(revision)
    return root / "snapshots" / revision


def test_a_model_that_refers_to_the_hub(hub, bert, sentences, tmp_path):
    made = make_model(tmp_path / "made", Path("someone/tiny"), sentences)
    manifest = json.loads((made / "fastflow.json").read_text())
    assert manifest["encoder"] == {"sha256": encoder_hash(bert), "hub_id": "someone/tiny", "revision": hub.name}
    assert sorted(p.name for p in made.iterdir()) == ["README.md", "calibration.safetensors", "fastflow.json"]
    beside = make_model(tmp_path / "beside", bert, sentences)
    assert np.array_equal(Runtime(made).encode(sentences[:5]), Runtime(beside).encode(sentences[:5]))
    assert verify(made)[0].startswith("2 files")
    config = hub / "config.json"
    config.write_text(config.read_text() + " ")
    with pytest.raises(FastflowError, match=r"someone/tiny at .* differs from the encoder this model was trained with"):
        Runtime(made)
    shutil.rmtree(hub)
    with pytest.raises(FastflowError, match="'someone/tiny' is neither a local directory nor to be had from the Hub"):
        Runtime(made, allow_download=True)


def test_a_local_model_never_touches_the_network(hub, bert, sentences, tmp_path, monkeypatch):
    made, asked = make_model(tmp_path / "made", Path("someone/tiny"), sentences), []
    download = huggingface_hub.snapshot_download

    def watched(hub_id, local_files_only=False, **options):
        asked.append(local_files_only)
        return download(hub_id, local_files_only=True, **options)

    monkeypatch.setattr("huggingface_hub.snapshot_download", watched)
    assert load_model(made).encoder == hub
    assert Runtime(made).encode(["a"]).shape == (1, 32)
    shutil.rmtree(hub)
    command = f"hf download someone/tiny --revision {hub.name}"
    message = rf"made holds no encoder, and someone/tiny is not in the local Hub cache: fetch it with '{command}', or"
    for opens in (Runtime, load_model, verify):
        with pytest.raises(FastflowError, match=message):
            opens(made)
    assert set(asked) == {True}
    asked.clear()
    for opens in (Runtime, load_model):
        with pytest.raises(FastflowError, match="neither a local directory nor to be had from the Hub"):
            opens(made, allow_download=True)
    assert asked == [True, False, True, False]


def test_a_runtime_remembers_that_it_may_download(hub, bert, sentences, tmp_path, monkeypatch):
    made = make_model(tmp_path / "made", Path("someone/tiny"), sentences)
    (hub / "model.safetensors").unlink()  # the cache holds a tokenizer alone
    with pytest.raises(FastflowError, match="is not in the local Hub cache"):
        Runtime(made)

    def download(hub_id, local_files_only=False, **options):
        if not local_files_only:
            shutil.copy(bert / "model.safetensors", hub)
        return str(hub)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    runtime = Runtime(made, allow_download=True)
    (hub / "model.safetensors").unlink()
    assert np.array_equal(pickle.loads(pickle.dumps(runtime)).encode(sentences[:3]), runtime.encode(sentences[:3]))


def test_a_cache_that_holds_only_a_tokenizer_does_not_pass_for_the_encoder(hub, bert, monkeypatch):
    (hub / "model.safetensors").unlink()
    asked = []

    def download(hub_id, local_files_only=False, **options):
        asked.append(local_files_only)
        if not local_files_only:
            shutil.copy(bert / "model.safetensors", hub)
        return str(hub)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert encoder_hash(hub_snapshot("someone/tiny")) == encoder_hash(bert)
    assert asked == [True, False]
    assert hub_snapshot("someone/tiny") == hub  # and now nothing is fetched
    assert asked == [True, False, True]


def test_info_and_verify_commands(model, model_copy):
    shown = CliRunner().invoke(main, ["info", str(model)])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["fingerprint"] == load_model(model).fingerprint
    checked = CliRunner().invoke(main, ["verify", str(model_copy)])
    assert (checked.exit_code, checked.stdout.split("\n")[0]) == (0, "6 files match their sha256")
    (model_copy / "README.md").write_text("mended")
    refused = CliRunner().invoke(main, ["verify", str(model_copy)])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("fastflow: ")
    assert refused.stderr.count("\n") == 1
