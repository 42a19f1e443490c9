"""What export writes, what its proof catches, and that nothing is left when it fails."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import safe_open

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import load_model, verify
from fastflow.model.hashing import encoder_hash
from fastflow.train.data.embeddings import Embedder, open_encoder
from fastflow.train.ship.export import check_out, check_reference, export

from support.builders import hub_cache
from support.calibrations import SHAPE, fitted_by, write
from support.tolerances import EMBEDDING

METHODS = [
    "flow",
    "flow,recolour",
    "whiten,recolour",
    "standardize",
    "nullspace:2",
    "whiten",
    "whiten:16,flow",
    "flow,whiten:8",
]


@pytest.mark.slow
def test_directory_is_as_documented(tmp_path, encoder, pooled, sentences):
    out = tmp_path / "deep" / "m"
    mark = write(out, encoder, fitted_by("whiten:16,flow", pooled), sentences)
    inside = {
        f"0_Transformer/{name}"
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    }
    files = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    assert set(files) == {"fastflow.json", "calibration.safetensors", "int8.safetensors", "README.md", *inside}
    manifest = json.loads(files["fastflow.json"].read_text())
    assert manifest["format_version"] == 1
    assert manifest["pooling"] == {"mode": "mean", "layers": [1, 3]}
    assert (manifest["max_length"], manifest["dim"], manifest["fingerprint"]) == (64, 16, mark)
    assert manifest["calibration"] == [{"kind": "whiten"}, {"kind": "flow", "dim": 16, **SHAPE}]
    assert manifest["encoder"] == {"sha256": encoder_hash(out / "0_Transformer")}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert manifest["files"] == {name: digest for name, digest in digests.items() if name != "fastflow.json"}
    with safe_open(str(files["calibration.safetensors"]), "np") as handle:
        assert all(name.startswith(("0.", "1.levels.")) for name in handle.keys())  # noqa: SIM118
        assert handle.get_tensor("0.matrix").shape == (32, 16)
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {files["README.md"].stat().st_mode & 0o777}
    assert verify(out)[-1] == f"fingerprint {mark}"
    assert [path.name for path in out.parent.iterdir()] == ["m"]


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, "none"])
def test_saved_model_embeds_as_pytorch_does(tmp_path, encoder, pooled, sentences, method):
    fitted = fitted_by(method, pooled)
    write(tmp_path / "m", encoder, fitted, sentences)
    with torch.no_grad():
        x = torch.from_numpy(pooled.astype(np.float64))
        for index, stage in enumerate(fitted.stages):
            p = {
                name: torch.from_numpy(np.array(a, np.float64))
                for name, a in stage.params.items()
                if stage.kind != "flow"
            }
            x = {
                "flow": lambda x, index=index: fitted.flows[index].double()(x)[0],
                "standardize": lambda x, p=p: (x - p["mean"]) / p["deviation"],
                "whiten": lambda x, p=p: (x - p["mean"]) @ p["matrix"],
                "recolour": lambda x, p=p: (x - p["mean"]) @ p["matrix"] + p["shift"],
                "nullspace": lambda x, p=p: (x - p["mean"]) @ (torch.eye(32) - p["directions"].T @ p["directions"]),
            }[stage.kind](x)
    expected = torch.nn.functional.normalize(x, dim=1).numpy()
    for backend in ("reference", "torch"):
        runtime = Runtime(tmp_path / "m", backend=backend)
        assert np.abs(runtime.encode(sentences, normalize_embeddings=True) - expected).max() <= 5 * EMBEDDING
        assert runtime.dim == expected.shape[1]
    assert (tmp_path / "m" / "calibration.safetensors").exists() == (method != "none")


@pytest.mark.slow
@pytest.mark.parametrize("permutation", ["reversal", "random", "lu"])
@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_loading_changes_no_parameter(tmp_path, encoder, pooled, sentences, coupling, permutation):
    fitted = fitted_by("flow", pooled, coupling=coupling, permutation=permutation)
    write(tmp_path / "m", encoder, fitted, sentences)
    (stage,) = load_model(tmp_path / "m").calibration
    state = fitted.flows[0].state_dict()
    assert set(stage.params) == set(state)
    for name, tensor in state.items():
        assert stage.params[name].dtype == tensor.numpy().dtype
        assert np.array_equal(stage.params[name], tensor.numpy()), name


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failing_to_write_leaves_nothing(tmp_path, encoder, pooled, sentences, monkeypatch, error):
    def fail(*unused):
        raise error

    monkeypatch.setattr(safetensors.numpy, "save", fail)
    expected = (FastflowError, KeyboardInterrupt)
    with pytest.raises(expected, match=r"m cannot be written: No space left on device|^$"):
        write(tmp_path / "m", encoder, fitted_by("standardize", pooled), sentences)
    assert list(tmp_path.iterdir()) == []


def test_existing_output_is_refused_and_kept(tmp_path, encoder, pooled, sentences):
    for existing in (tmp_path / "file", tmp_path / "folder"):
        existing.write_text("mine") if existing.name == "file" else existing.mkdir()
        with pytest.raises(UsageError, match="exists already; remove it or choose another --out"):
            check_out(existing)
    (tmp_path / "folder" / "mine").write_text("mine")
    with pytest.raises(FastflowError, match="folder cannot be written"):
        write(tmp_path / "folder", encoder, fitted_by("standardize", pooled), sentences)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "mine"]
    check_out(tmp_path / "new" / "deep")
    with pytest.raises(FastflowError, match="file is not a writable directory; choose another --out"):
        check_out(tmp_path / "file" / "m")


@pytest.mark.slow
def test_vocabulary_file_becomes_a_tokenizer(tmp_path, bert_copy, sentences):
    """An old BERT directory holds vocab.txt alone; the model holds the tokenizer.json it stands for."""
    whole = Embedder(open_encoder(str(bert_copy), "first-last", 64), "cpu")(sentences)
    vocabulary = json.loads((bert_copy / "tokenizer.json").read_text())["model"]["vocab"]
    (bert_copy / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n")
    (bert_copy / "tokenizer.json").unlink()
    encoder = open_encoder(str(bert_copy), "first-last", 64)
    pooled = Embedder(encoder, "cpu")(sentences)
    assert np.array_equal(pooled, whole)
    write(tmp_path / "m", encoder, fitted_by("flow", pooled), sentences)
    inside = tmp_path / "m" / "0_Transformer"
    assert (inside / "tokenizer.json").is_file()
    assert not (inside / "vocab.txt").exists()
    saved = json.loads((inside / "tokenizer.json").read_text())
    assert saved["truncation"] is None
    assert saved["padding"] is None
    assert np.abs(Runtime(tmp_path / "m", backend="reference").pool(sentences) - whole).max() <= EMBEDDING * 10


@pytest.mark.slow
def test_an_encoder_of_the_hub_is_copied_unless_referenced(tmp_path, encoder, pooled, sentences, monkeypatch):
    """``hub`` is a fake of the Hub's local cache, and nothing is fetched."""
    hub = hub_cache(tmp_path / "hub", encoder.directory, monkeypatch)
    ours = dataclasses.replace(encoder, directory=hub, hub_id="someone/tiny", revision=hub.name)
    write(tmp_path / "copied", ours, fitted_by("flow", pooled), sentences)
    export(tmp_path / "light", ours, fitted_by("flow", pooled), {}, "# Card\n", sentences, reference=True)
    manifests = [json.loads((tmp_path / name / "fastflow.json").read_text()) for name in ("copied", "light")]
    assert manifests[0]["encoder"] == {"sha256": encoder_hash(tmp_path / "copied" / "0_Transformer")}
    assert manifests[1]["encoder"] == {"sha256": encoder.hash, "hub_id": "someone/tiny", "revision": hub.name}
    assert not (tmp_path / "light" / "0_Transformer").exists()
    light = Runtime(tmp_path / "light", backend="reference").encode(sentences[:5])
    shutil.rmtree(hub)
    assert np.array_equal(Runtime(tmp_path / "copied", backend="reference").encode(sentences[:5]), light)
    with pytest.raises(FastflowError, match="someone/tiny"):
        Runtime(tmp_path / "light")


def test_a_local_encoder_cannot_be_referenced(encoder):
    with pytest.raises(UsageError, match=r"--reference-encoder is for an encoder from the Hub, and .*bert is a local"):
        check_reference(encoder)
