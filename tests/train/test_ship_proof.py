"""The proof of a written model: whatever differs from what was fitted is found."""

import numpy as np
import pytest
import safetensors.numpy
from safetensors.torch import load_file, save_file
from tokenizers import normalizers

from fastflow.errors import FastflowError
from fastflow.model.artifact import verify
from fastflow.stages.calibration import apply
from fastflow.train.ship import export as exporting
from fastflow.train.ship import proof

from support.calibrations import fitted_by, write


def tampering(monkeypatch, change):
    """Let one array reach the file changed; hashes are taken afterwards, so only the proof can notice."""
    save = safetensors.numpy.save

    def spoilt(arrays):
        arrays = {name: np.array(array) for name, array in arrays.items()}
        change(arrays)
        return save(arrays)

    monkeypatch.setattr(safetensors.numpy, "save", spoilt)


PARAMETERS = [
    ("flow", "0.levels.0.0.actnorm.shift"),
    ("flow", "0.levels.1.1.actnorm.logscale"),
    ("flow", "0.levels.1.0.coupling.net.bias3"),
    ("standardize", "0.deviation"),
    ("nullspace:2", "0.directions"),
    ("whiten:16,flow", "0.matrix"),
    ("whiten:16,flow", "1.levels.0.1.actnorm.logscale"),
]


@pytest.mark.parametrize(("method", "name"), PARAMETERS)
def test_proof_catches_a_changed_parameter(tmp_path, encoder, pooled, sentences, monkeypatch, method, name):
    fitted = fitted_by(method, pooled)

    def change(arrays):
        if name in arrays:  # not in the file of int8's trial
            changed.append(name)
            arrays[name].flat[3] *= 1.001
            arrays[name].flat[3] += 1e-5

    changed: list[str] = []
    tampering(monkeypatch, change)
    with pytest.raises(FastflowError, match=r"export stopped: .* of stage \d of the saved model differs"):
        write(tmp_path / "m", encoder, fitted, sentences)
    assert changed == [name]
    assert list(tmp_path.iterdir()) == []


def test_proof_compares_log_determinants(tmp_path, encoder, pooled, sentences, monkeypatch):
    right = exporting.calibration.apply_with_log_det

    def wrong(stage, x):
        z, log_det = right(stage, x)
        return z, log_det + 1e-4

    monkeypatch.setattr(exporting.calibration, "apply_with_log_det", wrong)
    with pytest.raises(FastflowError, match="export stopped: the log-determinant of stage 0"):
        write(tmp_path / "m", encoder, fitted_by("flow", pooled), sentences)


def weights_changed(monkeypatch):
    def spoilt(source, target):
        if source.suffix != ".safetensors":
            return target.write_bytes(source.read_bytes())
        tensors = load_file(source)
        tensors["encoder.layer.0.output.dense.bias"][3] += 1e-2
        return save_file(tensors, target, {"format": "pt"})

    monkeypatch.setattr(exporting.shutil, "copyfile", spoilt)


def tokenizer_changed(monkeypatch):
    load = exporting.load_tokenizer

    def spoilt(directory):
        tokenizer = load(directory)
        tokenizer.normalizer = normalizers.NFC()  # no longer lower-cased
        return tokenizer

    monkeypatch.setattr(exporting, "load_tokenizer", spoilt)


@pytest.mark.parametrize("changed", [weights_changed, tokenizer_changed])
def test_proof_catches_a_changed_encoder(tmp_path, encoder, pooled, sentences, monkeypatch, changed):
    fitted = fitted_by("flow", pooled)
    changed(monkeypatch)
    with pytest.raises(FastflowError, match="export stopped: the pooled embedding of the saved model differs"):
        write(tmp_path / "m", encoder, fitted, sentences)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", [0, 20, 140])
def test_proof_accepts_a_whitening_that_amplifies_noise(tmp_path, encoder, pooled, sentences, start):
    """Hardly more texts than dimensions: float32 is inexact there, in PyTorch as much as here."""
    rows = slice(start, start + 33)
    fitted = fitted_by("whiten", pooled[rows])
    exact, plain = (apply([fitted.stages[0].astype(d)], pooled[rows].astype(d)) for d in (np.float64, np.float32))
    unit = [z / np.linalg.norm(z, axis=1, keepdims=True) for z in (exact, plain)]
    assert np.abs(unit[0] - unit[1]).max() > proof.AGREEMENT
    write(tmp_path / "m", encoder, fitted, sentences[rows])
    assert verify(tmp_path / "m")
