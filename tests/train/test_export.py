"""What a fit is shipped as: a directory that is proved, and a runtime in memory."""

import gc
import hashlib
import json

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import normalizers

import fastflow
from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model
from fastflow.model.encoder.weights import encoder_hash
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.verify import verify
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.export import export as exporting
from fastflow.train.export.export import TEXTS, measure_precision
from fastflow.transforms.calibration import apply

from support.calibrations import SHAPE, fitted_by, write
from support.tolerances import EMBEDDING

METHODS = ["none", "flow", "flow,recolour", "whiten,recolour", "standardize", "nullspace:2", "whiten"]
METHODS += ["whiten:16,flow", "flow,whiten:8"]
LINEAR = {  # in PyTorch
    "standardize": lambda x, p: (x - p["mean"]) / p["deviation"],
    "whiten": lambda x, p: (x - p["mean"]) @ p["matrix"],
    "recolour": lambda x, p: (x - p["mean"]) @ p["matrix"] + p["shift"],
    "nullspace": lambda x, p: (x - p["mean"]) @ (torch.eye(32) - p["directions"].T @ p["directions"]),
}


def test_directory_is_as_documented(tmp_path, encoder, pooled, sentences):
    out = tmp_path / "deep" / "m"
    mark = write(out, encoder, fitted_by("whiten:16,flow", pooled), sentences)
    inside = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    files = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    assert set(files) == {
        *("fastflow.json", "calibration.safetensors", "int8.safetensors", "README.md"),
        *(f"0_Transformer/{name}" for name in inside),
    }
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    manifest = json.loads(files["fastflow.json"].read_text())
    wanted = {
        "format_version": 1, "pooling": {"mode": "mean", "layers": [1, 3]}, "max_length": 64, "dim": 16,
        "fingerprint": mark, "calibration": [{"kind": "whiten"}, {"kind": "flow", "dim": 16, **SHAPE}],
        "encoder": {"sha256": encoder_hash(out / "0_Transformer")},
        "files": {name: digest for name, digest in digests.items() if name != "fastflow.json"},
    }  # fmt: skip
    assert {name: manifest[name] for name in wanted} == wanted
    with safe_open(str(files["calibration.safetensors"]), "np") as handle:
        assert all(name.startswith(("0.", "1.levels.")) for name in handle.keys())  # noqa: SIM118
        assert handle.get_tensor("0.matrix").shape == (32, 16)
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {files["README.md"].stat().st_mode & 0o777}
    assert verify(out)[-1] == f"fingerprint {mark}"
    assert [path.name for path in out.parent.iterdir()] == ["m"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_saved_model_embeds_as_pytorch_does(tmp_path, encoder, pooled, sentences, method):
    fitted = fitted_by(method, pooled)
    write(tmp_path / "m", encoder, fitted, sentences)
    x = torch.from_numpy(pooled.astype(np.float64))
    for index, stage in enumerate(fitted.stages):
        if stage.kind == "flow":
            x = fitted.flows[index].double()(x)[0].detach()
        else:
            x = LINEAR[stage.kind](x, {name: torch.from_numpy(np.array(a, float)) for name, a in stage.params.items()})
    expected = torch.nn.functional.normalize(x, dim=1).numpy()
    for backend in ("reference", "torch"):
        runtime = Runtime(tmp_path / "m", backend=backend)
        assert np.abs(runtime.encode(sentences, normalize_embeddings=True) - expected).max() <= 5 * EMBEDDING
        assert runtime.dim == expected.shape[1]
    assert (tmp_path / "m" / "calibration.safetensors").exists() == (method != "none")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failing_to_write_leaves_nothing(tmp_path, encoder, pooled, sentences, monkeypatch, error):
    def fail(*unused):
        raise error

    monkeypatch.setattr(safetensors.numpy, "save", fail)
    expected = (FastflowError, KeyboardInterrupt)
    with pytest.raises(expected, match=r"m cannot be written: No space left on device|^$"):
        write(tmp_path / "m", encoder, fitted_by("standardize", pooled), sentences)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_vocabulary_file_becomes_a_tokenizer(tmp_path, bert_copy, sentences):
    whole = Embedder(open_encoder(str(bert_copy), "first-last", 64), "cpu")(sentences)
    vocabulary = json.loads((bert_copy / "tokenizer.json").read_text())["model"]["vocab"]
    (bert_copy / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n")
    (bert_copy / "tokenizer.json").unlink()
    encoder = open_encoder(str(bert_copy), "first-last", 64)
    pooled = Embedder(encoder, "cpu")(sentences)
    assert np.array_equal(pooled, whole)
    write(tmp_path / "m", encoder, fitted_by("standardize", pooled), sentences)
    inside = tmp_path / "m" / "0_Transformer"
    assert not (inside / "vocab.txt").exists()
    saved = json.loads((inside / "tokenizer.json").read_text())
    assert (saved["truncation"], saved["padding"]) == (None, None)
    assert np.abs(Runtime(tmp_path / "m", backend="reference").pool(sentences) - whole).max() <= EMBEDDING * 10


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("flow", "0.levels.0.0.actnorm.shift"),
        ("flow", "0.levels.1.1.actnorm.logscale"),
        ("flow", "0.levels.1.0.coupling.net.bias3"),
        ("standardize", "0.deviation"),
        ("nullspace:2", "0.directions"),
        ("whiten:16,flow", "0.matrix"),
        ("whiten:16,flow", "1.levels.0.1.actnorm.logscale"),
    ],
)
def test_proof_catches_a_changed_parameter(tmp_path, encoder, pooled, sentences, monkeypatch, method, name):
    """Hashes are taken after the change, so only the proof can notice."""
    fitted, changed, save = fitted_by(method, pooled), [], safetensors.numpy.save

    def spoil(arrays):
        arrays = {name: np.array(array) for name, array in arrays.items()}
        if name in arrays:  # not in the file of int8's trial
            changed.append(name)
            arrays[name].flat[3] *= 1.001
            arrays[name].flat[3] += 1e-5
        return save(arrays)

    monkeypatch.setattr(safetensors.numpy, "save", spoil)
    with pytest.raises(FastflowError, match=r"export stopped: .* of stage \d of the saved model differs"):
        write(tmp_path / "m", encoder, fitted, sentences)
    assert changed == [name]
    assert list(tmp_path.iterdir()) == []


def spoil_flow(monkeypatch, output, log_det):
    right = exporting.calibration.apply_with_log_det

    def wrong(stage, x):
        z, density = right(stage, x)
        return z + output * max(1, np.abs(z).max()), density + log_det * max(1, np.abs(density).max())

    monkeypatch.setattr(exporting.calibration, "apply_with_log_det", wrong)


def spoil_backend(monkeypatch, name):
    def open_wrong(*args):
        backend = proof_opens(*args)
        right = getattr(backend, name)

        def wrong(rows):
            vectors = np.array(right(rows))
            vectors[:, 0] += 1e-4 * np.linalg.norm(vectors, axis=1)
            return vectors

        monkeypatch.setattr(backend, name, wrong)
        return backend

    proof_opens = exporting.open_backend
    monkeypatch.setattr(exporting, "open_backend", open_wrong)


def change_weights(monkeypatch):
    def spoil(source, target):
        if source.suffix != ".safetensors":
            return target.write_bytes(source.read_bytes())
        tensors = load_file(source)
        tensors["encoder.layer.0.output.dense.bias"][3] += 1e-2
        return save_file(tensors, target, {"format": "pt"})

    monkeypatch.setattr(exporting.shutil, "copyfile", spoil)


def change_tokenizer(monkeypatch):
    load = exporting.load_tokenizer

    def spoil(directory):
        tokenizer = load(directory)
        tokenizer.normalizer = normalizers.NFC()  # no longer lower-cased
        return tokenizer

    monkeypatch.setattr(exporting, "load_tokenizer", spoil)


DEVIATIONS = [  # ten times the tolerance: 1e-9 relative in float64, 1e-5 of a unit vector in float32
    ("the log-determinant of stage 0", lambda patch: spoil_flow(patch, 0, 1e-8)),
    ("the output of stage 0", lambda patch: spoil_flow(patch, 1e-8, 0)),
    ("the pooled embedding", lambda patch: spoil_backend(patch, "pool")),
    ("the embedding", lambda patch: spoil_backend(patch, "calibrate")),
    ("the pooled embedding", change_weights),
    ("the pooled embedding", change_tokenizer),
]


@pytest.mark.parametrize(("part", "change"), DEVIATIONS)
def test_proof_catches_a_deviation(tmp_path, encoder, pooled, sentences, monkeypatch, part, change):
    fitted = fitted_by("flow", pooled)
    change(monkeypatch)
    with pytest.raises(FastflowError, match=f"export stopped: {part} of the saved model differs"):
        write(tmp_path / "m", encoder, fitted, sentences)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", [0, 20, 140])
def test_proof_accepts_a_whitening_that_amplifies_noise(tmp_path, encoder, pooled, sentences, start):
    """Hardly more texts than dimensions: float32 is inexact there, in PyTorch as much as here."""
    rows = slice(start, start + 33)
    fitted = fitted_by("whiten", pooled[rows])
    exact, plain = (apply([fitted.stages[0].astype(d)], pooled[rows].astype(d)) for d in (np.float64, np.float32))
    unit = [z / np.linalg.norm(z, axis=1, keepdims=True) for z in (exact, plain)]
    assert np.abs(unit[0] - unit[1]).max() > exporting.AGREEMENT
    write(tmp_path / "m", encoder, fitted, sentences[rows])
    assert verify(tmp_path / "m")


@pytest.mark.slow
def test_the_runtime_needs_no_saved_model_and_leaves_nothing(bert, sentences, empty, tmp_path):
    fit = fastflow.fit(sentences, bert, "whiten:8")
    mark = fit.save(tmp_path / "saved")
    runtime = fit.runtime(backend="reference")
    assert (runtime.fingerprint, runtime.backend, runtime.dim) == (mark, "reference", 8)
    saved = fastflow.Runtime(tmp_path / "saved", backend="reference")
    assert np.array_equal(runtime.encode(sentences[:9]), saved.encode(sentences[:9]))
    assert len(list(empty.iterdir())) == 1
    del runtime
    gc.collect()
    assert list(empty.iterdir()) == []
    with pytest.raises(FastflowError, match="tpu"):
        fit.runtime(device="tpu")
    assert list(empty.iterdir()) == []
    with pytest.raises(UsageError, match=r"exists already; remove it or choose another directory$"):
        fit.save(tmp_path / "saved")
    with pytest.raises(UsageError, match="is for an encoder from the Hub"):
        fit.save(tmp_path / "light", reference_encoder=True)
    assert not (tmp_path / "light").exists()


FORKED = """
import gc, os, pickle, sys, tempfile
import fastflow
tempfile.tempdir = sys.argv[2]
texts = [line.strip() for line in open(sys.argv[3])]
runtime = fastflow.fit(texts, sys.argv[1], "standardize").runtime()
if os.fork() == 0:
    del runtime
    gc.collect()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
again = pickle.loads(pickle.dumps(runtime))
assert (again.encode("the dog") == runtime.encode("the dog")).all()
"""


@pytest.mark.slow
def test_a_fork_leaves_the_folder_of_a_runtime_alone_and_the_end_of_the_process_removes_it(
    bert, corpus, empty, run_python
):
    done = run_python(FORKED, bert, empty, corpus)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(empty.glob("fastflow-*")) == []  # PyTorch may leave a folder of its own


def test_int8_is_measured_on_texts_of_the_whole_corpus(model, monkeypatch):
    asked, tokenize = [], Tokenizer.tokenize_prompted

    def keep(self, texts, *rest):
        asked.append([int(text.split()[1]) for text in texts])
        return tokenize(self, texts, *rest)

    monkeypatch.setattr(Tokenizer, "tokenize_prompted", keep)
    measure_precision(load_model(model), [f"dog {i}" for i in range(10 * TEXTS + 7)])
    assert (len(asked[0]), asked[0][0], asked[0][-1] > 9 * TEXTS) == (TEXTS, 0, True)
    monkeypatch.setattr(exporting, "pick_backend", lambda encoder, device: "torch")  # no kernels for the encoder
    assert measure_precision(load_model(model), ["a dog"]) == ({}, None)
