"""The command and the call: what they write whole, refuse in one sentence, and leave behind; adapters."""

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

import fastflow
from fastflow import FastflowError, Runtime, UsageError
from fastflow.cli import main
from fastflow.exports import sentence_transformers
from fastflow.exports.record import RECORD, read_record
from fastflow.model.hashing import file_hash
from fastflow.model.locate import DEFAULT
from fastflow.model.verify import verify

from support.builders import make_model
from support.exports import TEXTS
from support.sentence_dirs import NORMALIZE, make_directory, pooling


def run(*arguments):
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_the_command_writes_a_directory_with_a_card_and_a_record(tmp_path, model):
    done = run("export", model, "--to", "st", "-o", tmp_path / "st", "--dim", "8", "--normalize")
    assert done.exit_code == 0
    assert done.stderr == f"fastflow: 8 numbers a vector, 0.3 MB; written to {tmp_path / 'st'}\n"
    card = (tmp_path / "st" / "README.md").read_text()
    assert "| vectors | 8 numbers, of length 1 |" in card
    assert 'SentenceTransformer("this directory")' in card
    record = read_record(tmp_path / "st", "st")
    assert record.fingerprint == fastflow.Runtime(model).fingerprint
    assert record.options() == {"truncate_dim": 8, "normalize_embeddings": True}


def test_a_directory_that_is_there_is_not_replaced(tmp_path, model):
    (tmp_path / "st").mkdir()
    (tmp_path / "st" / "mine").write_text("x")
    done = run("export", model, "--to", "st", "-o", tmp_path / "st")
    assert done.exit_code == 2
    assert done.stderr == f"fastflow: {tmp_path / 'st'} exists already; remove it or choose another directory\n"
    assert [path.name for path in (tmp_path / "st").iterdir()] == ["mine"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_half_written_stays(tmp_path, model, monkeypatch, error):
    def full(*_):
        raise error

    monkeypatch.setattr(sentence_transformers.Writer, "finish", full)
    with pytest.raises((FastflowError, KeyboardInterrupt)) as raised:
        fastflow.export(model, "st", tmp_path / "st")
    if isinstance(error, OSError):
        assert str(raised.value).endswith("No space left on device; free some space or choose another directory")
    assert list(tmp_path.iterdir()) == []


def test_refusals_of_every_format(tmp_path, model, vector_model, bert):
    out = tmp_path / "out"
    for arguments, words in [
        ((model, "tf", out), "unknown format 'tf'; known are st, onnx, model2vec, adapter"),
        ((vector_model, "st", out), "has no encoder, and the format st is for models of texts"),
        ((model, "st", out, 33), "dim must be 1 to 32, the width of this model, not 33"),
        ((tmp_path / "none", "st", out), "no such model directory"),
        ((bert, "adapter", out), "has no calibration of its own"),
        ((DEFAULT, "adapter", out, 8), "an adapter is the model itself"),
    ]:
        with pytest.raises(FastflowError, match=words):
            fastflow.export(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_writable_parent(tmp_path, model):
    (tmp_path / "file").write_text("")
    with pytest.raises(FastflowError, match="is not a writable directory"):
        fastflow.export(model, "st", tmp_path / "file" / "st")


def test_the_record_is_read_strictly(tmp_path, model):
    fastflow.export(model, "st", tmp_path / "st")
    whole = json.loads((tmp_path / "st" / RECORD).read_text())
    for change, words in [
        ({"dim": 0}, "field dim: must be a whole number or null, not 0"),
        ({"normalize": 1}, "field normalize: must be a bool, not 1"),
        ({"format": "onnx"}, "is an export of the format 'onnx', not 'st'"),
    ]:
        (tmp_path / "st" / RECORD).write_text(json.dumps(whole | change))
        with pytest.raises(FastflowError, match=words):
            read_record(tmp_path / "st", "st")
    (tmp_path / "st" / RECORD).write_text(json.dumps(whole | {"dim": 1}))
    assert read_record(tmp_path / "st", "st").dim == 1
    with pytest.raises(UsageError, match="was not written by fastflow export: it has no"):
        read_record(tmp_path, "st")


@pytest.mark.slow
def test_verify_compares_a_model_with_its_export(tmp_path, model, weighted_model):
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    fastflow.export(model, "st", tmp_path / "st", dim=8)
    done = run("verify", model, tmp_path / "st", "--with", "st", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["sentence_transformers"]["difference"] <= 2e-6
    other = run("verify", weighted_model, tmp_path / "st", "--with", "st")
    assert other.exit_code == 1
    assert "was exported from another model" in other.stderr
    dense = sorted((tmp_path / "st").glob("*_Dense"), key=lambda path: int(path.name.partition("_")[0]))
    shutil.copy(dense[2] / "model.safetensors", dense[4] / "model.safetensors")  # weights of another coupling
    spoilt = run("verify", model, tmp_path / "st", "--with", "st")
    assert spoilt.exit_code == 1
    assert "give different vectors" in spoilt.stderr
    shutil.copy(dense[0] / "model.safetensors", dense[4] / "model.safetensors")
    assert "st: Sentence Transformers cannot open it: " in run("verify", model, tmp_path / "st", "--with", "st").stderr
    assert run("verify", model, tmp_path / "st").exit_code == 2


WEIGHTS = "model.safetensors"


# ---- adapters: a model without the weights of its encoder


@pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into")
def test_it_asks_for_the_weights_and_is_the_model_with_them(tmp_path, model, bert):
    made = fastflow.export(model, "adapter", tmp_path / "adapter")
    place = tmp_path / "adapter" / "0_Transformer" / WEIGHTS
    assert not place.exists()
    assert made.size < sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) / 2
    for opening in (Runtime, verify):
        with pytest.raises(FastflowError, match="or, if it is an adapter, put the encoder's file of sha256") as raised:
            opening(tmp_path / "adapter")
        assert file_hash(bert / WEIGHTS) in str(raised.value)
    place.symlink_to(bert / WEIGHTS)
    assert "files match their sha256" in verify(tmp_path / "adapter")[0]
    whole, again = Runtime(model), Runtime(tmp_path / "adapter")
    assert again.fingerprint == whole.fingerprint == made.fingerprint
    assert np.array_equal(again.encode(TEXTS), whole.encode(TEXTS))


def test_weights_of_another_encoder_are_refused(tmp_path, model, encoders):
    fastflow.export(model, "adapter", tmp_path / "adapter")
    shutil.copy(encoders("minilm") / WEIGHTS, tmp_path / "adapter" / "0_Transformer" / WEIGHTS)
    with pytest.raises(FastflowError, match="is damaged: its sha256 differs"):
        Runtime(tmp_path / "adapter")


def test_the_modules_of_sentence_transformers_stay(tmp_path, bert, sentences):
    source = make_directory(tmp_path / "st", bert, [pooling("mean"), NORMALIZE])
    model = make_model(tmp_path / "model", source, sentences, pooling="model", max_length=None)
    fastflow.export(model, "adapter", tmp_path / "adapter")
    kept = {path.relative_to(tmp_path / "adapter") for path in (tmp_path / "adapter").rglob("*")}
    there = {path.relative_to(model) for path in model.rglob("*")}
    assert [path.name for path in there - kept] == [WEIGHTS]
