"""Files that are cut or overwritten while something reads them: one sentence, or the vectors of before."""

import os
import shutil

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.kernels.stored import CHANGED
from fastflow.model.artifact import Opening
from fastflow.model.encoder.weights import MappedWeights
from fastflow.model.tensors import MappedTensors, read_tensors
from fastflow.search import Index

from support.databases import make
from support.static_dirs import model2vec_dir, numbers, static_embedding_dir

TEXTS = ["the dog runs", "a bird sings near the river", "nobody"]
KINDS = {
    "encoder": lambda path, bert, model: shutil.copytree(bert, path),
    "calibrated": lambda path, bert, model: shutil.copytree(model, path),
    "table of model2vec": lambda path, bert, model: model2vec_dir(path),
    "table of Sentence Transformers": lambda path, bert, model: static_embedding_dir(path),
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("make_dir", [model2vec_dir, static_embedding_dir])
def test_a_table_that_is_cut_under_a_runtime(tmp_path, backend, make_dir):
    folder = make_dir(tmp_path / "m")
    runtime = Runtime(folder, "cpu", backend=backend)
    whole = runtime.encode(TEXTS)
    assert np.isfinite(whole).all()
    os.truncate(next(folder.rglob("model.safetensors")), 200)
    with pytest.raises(FastflowError, match=CHANGED.split(";", maxsplit=1)[0]):
        runtime.encode(TEXTS)
    with pytest.raises(FastflowError, match="was changed"):  # and again, not zeros
        runtime.encode(TEXTS[:1])


def overwrite(folder):
    """Change the second half of every file in place; sizes stay."""
    for path in folder.rglob("*"):
        if path.is_file():
            data = np.fromfile(path, np.uint8)
            data[len(data) // 2 :] ^= 1
            with path.open("r+b") as file:
                file.write(data.tobytes())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS])
def test_a_model_that_is_written_over_gives_what_it_gave_or_a_sentence(tmp_path, backend, kind, bert, model):
    KINDS[kind](tmp_path / "m", bert, model)
    with Runtime(tmp_path / "m", "cpu", backend=backend) as other:
        fingerprint = other.fingerprint
    runtime = Runtime(tmp_path / "m", "cpu", backend=backend)
    before = runtime.encode(TEXTS)
    overwrite(tmp_path / "m")
    mapped = "table" in kind and backend != "torch"
    if mapped:
        with pytest.raises(FastflowError, match="its file was changed while it was read"):
            runtime.encode(TEXTS)
    else:
        assert np.array_equal(runtime.encode(TEXTS), before)
    if kind.startswith("table"):  # whose files are hashed when they are asked for
        with pytest.raises(FastflowError, match="was changed since the model was opened; open it again"):
            _ = runtime.fingerprint
    else:
        assert runtime.fingerprint == fingerprint


@pytest.mark.parametrize("directory", ["model_copy", "bert_copy"])
def test_weights_that_are_written_over_between_their_hash_and_their_use(directory, request):
    folder = request.getfixturevalue(directory)
    weights = next(folder.rglob("model.safetensors"))

    def opened():
        with Opening(folder) as opening:
            opening._hashes(weights)  # waited for
            overwrite(weights.parent)

    with pytest.raises(FastflowError, match="was changed since the model was opened; open it again"):
        opened()


def test_a_table_that_is_replaced_whole_stays_as_it_was(tmp_path):
    folder = model2vec_dir(tmp_path / "m")
    runtime = Runtime(folder, "cpu")
    before = runtime.encode(TEXTS)
    new = tmp_path / "new"
    shutil.copy(folder / "model.safetensors", new)
    new.replace(folder / "model.safetensors")
    assert np.array_equal(runtime.encode(TEXTS), before)
    with pytest.raises(FastflowError, match=r"model\.safetensors was changed since the model was opened"):
        _ = runtime.fingerprint  # that of the vectors can no longer be known


def test_weights_that_are_cut_while_they_are_packed(bert_copy, monkeypatch):
    path = bert_copy / "model.safetensors"
    release = MappedWeights.release

    def cut_first(self):
        monkeypatch.setattr(MappedWeights, "release", release)
        os.truncate(path, 4096)
        release(self)

    monkeypatch.setattr(MappedWeights, "release", cut_first)
    with pytest.raises(FastflowError) as raised:
        Runtime(bert_copy, "cpu", backend="cpu", dtype="float32")
    assert "\n" not in str(raised.value)


def test_tensors_that_are_cut_between_header_and_data(bert_copy, monkeypatch):
    path = bert_copy / "model.safetensors"
    mapped = MappedTensors(path)
    mapped.check()
    os.truncate(path, 4096)
    assert sum(float(np.abs(array).sum()) for array in mapped.arrays.values()) >= 0
    with pytest.raises(FastflowError, match=rf"{path}: its file was changed"):
        mapped.release()
    with pytest.raises(FastflowError, match="damaged or not safetensors"):
        read_tensors(path)


def rows_in(folder, suffix):
    path, vectors = folder / f"v{suffix}", numbers((5000, 256))
    if suffix == ".npy":
        np.save(path, vectors)
    else:
        make(path, vectors)
    return path


@pytest.mark.parametrize("change", ["cut", "overwritten"])
@pytest.mark.parametrize("hold", [None, "vectors", "int8"])
@pytest.mark.parametrize("suffix", [".npy", ".db"])
def test_an_index_whose_file_changes(tmp_path, suffix, hold, change):
    path = rows_in(tmp_path, suffix)
    with Runtime() as runtime, Index(path, runtime, hold=hold) as index:
        before, said = index.search("the dog", 3), ""
        assert len(before) == 3
        if change == "cut":
            os.truncate(path, 8192)
        else:
            overwrite(tmp_path)
        try:
            found = index.search("the dog", 3)
        except FastflowError as error:
            said = str(error)
        if said:
            assert "\n" not in said
            assert change == "cut" or "was changed" in said
        else:  # rows that are held need no file
            assert hold == "vectors"
            assert change == "cut" or suffix == ".npy"
            assert found == before
