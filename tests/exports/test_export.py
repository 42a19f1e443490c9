"""The command and the call: the whole export, refusals, adapters, and ``verify``."""

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
from support.exports import MODELS, TEXTS
from support.sentence_dirs import NORMALIZE, make_directory, pooling

WEIGHTS = "model.safetensors"


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
    again = run("export", model, "--to", "st", "-o", tmp_path / "st")
    assert again.exit_code == 2
    assert again.stderr == f"fastflow: {tmp_path / 'st'} exists already; remove it or choose another directory\n"
    assert read_record(tmp_path / "st", "st") == record


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
        ((model, "st", out, None, False, "int8"), r"dtype 'int8' is not one of the format st: float32$"),
        ((tmp_path / "none", "st", out), "no such model directory"),
        ((bert, "adapter", out), "has no calibration of its own"),
        ((DEFAULT, "adapter", out, 8), "an adapter is the model itself"),
        ((model, "st", bert / "config.json" / "st"), "is not a writable directory"),
    ]:
        with pytest.raises(FastflowError, match=words):
            fastflow.export(*arguments)
    assert list(tmp_path.iterdir()) == []


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
@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("to", ["st", "onnx"])
def test_verify_compares_a_model_with_its_export(to, tmp_path, model, weighted_model, encoders, sentences):
    for library in {"st": ["sentence_transformers"], "onnx": ["onnx", "onnxruntime"]}[to]:
        pytest.importorskip(library, exc_type=ImportError)

    def compare(*arguments):
        done = run("verify", *arguments, "--with", to)
        return done.exit_code, done.stdout + done.stderr

    name, said, texts = {
        "st": ("sentence_transformers", "st: Sentence Transformers cannot open it: ", 25),
        "onnx": ("onnx", "onnx: ONNX Runtime cannot run it: ", 50),  # with and without a prompt
    }[to]
    given = model if to == "st" else MODELS["modules"](tmp_path / "model", encoders, sentences)
    out = tmp_path / to
    fastflow.export(given, to, out, dim=8, normalize=to == "onnx")
    done = run("verify", given, out, "--with", to, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)[name]
    assert found["texts"] == texts
    assert found["difference"] <= 2e-6
    code, words = compare(weighted_model, out)
    assert (code, "was exported from another model" in words) == (1, True)
    if to == "st":
        first, third, fifth = (
            path / WEIGHTS
            for path in sorted(out.glob("*_Dense"), key=lambda path: int(path.name.partition("_")[0]))[:5:2]
        )
        shutil.copy(third, fifth)  # weights of another coupling
    else:
        fastflow.export(given, "onnx", tmp_path / "int8", dtype="int8")
        code, words = compare(given, tmp_path / "int8")
        assert (code, "50 texts in int8: largest difference to ONNX Runtime" in words) == (0, True)
        (tmp_path / "int8" / "model.onnx").replace(out / "model.onnx")
        assert "give that directory after the model" in compare(given)[1]
    code, words = compare(given, out)
    assert (code, "give different vectors" in words) == (1, True)
    if to == "st":
        shutil.copy(first, fifth)
    else:
        (out / "model.onnx").write_bytes(b"x")
    assert said in compare(given, out)[1]
    assert run("verify", given, out).exit_code == 2


# ---- adapters: a model without the weights of its encoder


@pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into")
def test_it_asks_for_the_weights_and_is_the_model_with_them(tmp_path, model, bert, encoders):
    made = fastflow.export(model, "adapter", tmp_path / "adapter")
    place = tmp_path / "adapter" / "0_Transformer" / WEIGHTS
    assert not place.exists()
    assert made.size < sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) / 2
    for opening in (Runtime, verify):
        with pytest.raises(FastflowError, match="or, if it is an adapter, put the encoder's file of sha256") as raised:
            opening(tmp_path / "adapter")
        assert file_hash(bert / WEIGHTS) in str(raised.value)
    place.symlink_to(encoders("minilm") / WEIGHTS)
    with pytest.raises(FastflowError, match="is damaged: its sha256 differs"):
        Runtime(tmp_path / "adapter")
    place.unlink()
    place.symlink_to(bert / WEIGHTS)
    assert "files match their sha256" in verify(tmp_path / "adapter")[0]
    whole, again = Runtime(model), Runtime(tmp_path / "adapter")
    assert again.fingerprint == whole.fingerprint == made.fingerprint
    assert np.array_equal(again.encode(TEXTS), whole.encode(TEXTS))


def test_the_modules_of_sentence_transformers_stay(tmp_path, bert, sentences):
    source = make_directory(tmp_path / "st", bert, [pooling("mean"), NORMALIZE])
    model = make_model(tmp_path / "model", source, sentences, pooling="model", max_length=None)
    fastflow.export(model, "adapter", tmp_path / "adapter")
    kept = {path.relative_to(tmp_path / "adapter") for path in (tmp_path / "adapter").rglob("*")}
    there = {path.relative_to(model) for path in model.rglob("*")}
    assert [path.name for path in there - kept] == [WEIGHTS]
