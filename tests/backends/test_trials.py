"""Trials of int8 that are kept in the user's cache: the same numbers, of the same files, and never an error."""

from __future__ import annotations

import os
import shutil
import stat
from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from fastflow import Runtime
from fastflow.backends import precision
from fastflow.backends.precision import read_trial
from fastflow.cache_folder import cache_directory
from fastflow.errors import UsageError
from fastflow.kernels.processor import usable_isas
from fastflow.model.artifact import load_model

from support.builders import make_encoder
from support.commands import run
from support.sentence_dirs import NORMALIZE, make_directory, pooling

pytestmark = pytest.mark.skipif(find_spec("fastflow.kernels._cpu") is None, reason="the cpu backend is not compiled")
TEXTS = ["", "x", "the dog sings", "a bird by the river runs and falls"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's cache, empty; ``made`` counts the trials that are made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(precision, "cache_directory", cache_directory)
    return tmp_path / "cache" / "fastflow"


@pytest.fixture
def made(monkeypatch):
    """The models that trials are made of."""
    found, trial = [], precision.trial
    monkeypatch.setattr(precision, "trial", lambda model: found.append(model.path) or trial(model))
    return found


@pytest.fixture
def encoder(bert, tmp_path):
    return shutil.copytree(bert, tmp_path / "encoder")


def opened(path):
    """(the vectors, the sentence on int8, the trial) of an encoder in int8."""
    with Runtime(path, dtype="int8") as rt:
        cost = [detail for detail in rt.info()["details"] if detail.startswith("int8: ")]
        return rt.encode(TEXTS), *cost, rt.session.backend.int8


def only(folder):
    [path] = folder.iterdir()
    return path


def test_a_later_opening_has_the_trial_of_the_first(encoder, folder, made):
    vectors, cost, tried = opened(encoder)
    assert made == [encoder]
    assert "measured at opening" in cost
    again, later, kept = opened(encoder)
    assert made == [encoder]
    assert later == cost.replace("measured at opening", "measured at an earlier opening")
    assert np.array_equal(again, vectors)
    assert kept.entry() == tried.entry()
    assert kept.arrays().keys() == tried.arrays().keys()
    for name, array in tried.arrays().items():
        np.testing.assert_array_equal(kept.arrays()[name], array, strict=True)
    assert stat.S_IMODE(only(folder).stat().st_mode) == 0o600
    entry, _ = read_trial(only(folder))
    assert (entry["model"], entry["fingerprint"]) == (str(encoder), load_model(encoder).fingerprint)


def rewrite(encoder):
    """Other weights of the same size, in the same inode, at the same time."""
    path = encoder / "model.safetensors"
    before, weights = path.stat(), load_file(path)
    for tensor in weights.values():
        tensor *= 1.25
    save_file(weights, encoder / "new", {"format": "pt"})
    with path.open("r+b") as handle:
        handle.write((encoder / "new").read_bytes())
    (encoder / "new").unlink()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_ino) == (before.st_size, before.st_ino)


def replace(encoder):
    shutil.rmtree(encoder)
    make_encoder(encoder, seed=5, num_hidden_layers=3, intermediate_size=64)


@pytest.mark.parametrize("change", [rewrite, replace])
def test_a_changed_encoder_is_tried_again(encoder, folder, made, change):
    opened(encoder)
    change(encoder)
    vectors, cost, tried = opened(encoder)
    assert made == [encoder, encoder]
    assert "measured at opening" in cost
    assert "measured at an earlier opening" in opened(encoder)[1]
    shutil.rmtree(folder)
    fresh, _, alone = opened(encoder)  # without an entry at all
    assert np.array_equal(vectors, fresh)
    assert tried.entry() == alone.entry()
    assert len(made) == 3


def test_a_setting_of_sentence_transformers_is_part_of_what_was_tried(bert, tmp_path, folder, made):
    model = make_directory(tmp_path / "st", bert, [pooling("mean"), NORMALIZE])
    opened(model)
    opened(model)
    assert made == [model]
    shutil.rmtree(model)
    make_directory(model, bert, [pooling("cls"), NORMALIZE])
    opened(model)
    assert made == [model, model]


def forge(change):
    """A fault that writes the entry with a sound hash, its JSON or its arrays changed."""

    def fault(path):
        entry, found = read_trial(path)
        change(entry, found)
        path.unlink()
        precision._keep(path, entry["model"], entry["fingerprint"], found._replace(**entry.get("of", {})))

    return fault


def damage(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


FAULTS = {
    "empty": damage(lambda data: b""),
    "cut": damage(lambda data: data[: len(data) // 2]),
    "longer": damage(lambda data: data + b"x"),
    "a bit of an array": damage(lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
    "a bit of the hash": damage(lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:]),
    "of another version": damage(lambda data: data.replace(b"trial 1", b"trial 2", 1)),
    "no bytes of ours": damage(lambda data: os.urandom(500)),
    "a cosine": forge(lambda entry, found: entry.update(of={"least_cosine": 7.0})),
    "a text": forge(lambda entry, found: entry.update(of={"text": 3})),
    "a version": forge(lambda entry, found: entry.update(of={"version": "1"})),
    "a fingerprint": forge(lambda entry, found: entry.update(fingerprint=7)),
    "a number": forge(lambda entry, found: found.largest.update(dict.fromkeys(found.largest, np.float32([np.nan])))),
    "a width": forge(lambda entry, found: found.largest.update(dict.fromkeys(found.largest, np.ones(3, np.float32)))),
    "a layer": forge(lambda entry, found: found.terms.update({"layer.99.up": np.ones(3, np.float32)})),
    "a vector": forge(lambda entry, found: found.exact.update({(2, 3, 3): np.ones(3, np.float32)})),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_entry_that_is_damaged_or_cannot_be_is_made_again(encoder, folder, made, fault):
    vectors, _, _ = opened(encoder)
    whole = only(folder).read_bytes()
    FAULTS[fault](only(folder))
    again, cost, _ = opened(encoder)
    assert made == [encoder, encoder]
    assert "measured at opening" in cost
    assert np.array_equal(again, vectors)
    assert only(folder).read_bytes() == whole
    assert "an earlier opening" in opened(encoder)[1]


def refuse(*given):
    raise PermissionError(13, "no")


@pytest.mark.parametrize("place", ["a file", "a folder without permission", "a folder in its place", "no home"])
def test_a_cache_that_cannot_be_written_costs_a_trial(encoder, folder, made, monkeypatch, place):
    vectors, _, _ = opened(encoder)
    entry = only(folder)
    shutil.rmtree(folder.parent)
    if place == "a file":
        folder.parent.write_text("not a folder")
    elif place == "a folder without permission":
        folder.parent.mkdir(mode=0o500)
        if os.geteuid() == 0:  # who may write everywhere: the call is refused instead
            monkeypatch.setattr(precision, "replace_bytes", refuse)
    elif place == "a folder in its place":
        entry.mkdir(parents=True)
    else:
        monkeypatch.setattr(precision, "cache_directory", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    for _ in range(2):
        again, cost, _ = opened(encoder)
        assert "measured at opening" in cost
        assert np.array_equal(again, vectors)
    assert len(made) == 3


@pytest.mark.skipif(usable_isas() == ("portable",), reason="this machine has one instruction set")
def test_each_instruction_set_has_a_trial_of_its_own(encoder, folder, made, monkeypatch):
    opened(encoder)
    monkeypatch.setenv("FASTFLOW_ISA", "portable")
    opened(encoder)
    opened(encoder)
    assert len(made) == 2
    assert len(list(folder.iterdir())) == 2


def test_a_model_that_was_opened_before_is_tried(encoder, folder, made):
    """Its files may have changed since they were hashed."""
    model = load_model(encoder)
    opened(encoder)
    with Runtime(model, dtype="int8"):
        assert made == [encoder, encoder]


def test_a_refusal_is_kept_too(encoder, folder, made, monkeypatch):
    monkeypatch.setattr(precision, "LEAST_INT8", 1.5)
    for _ in range(2):
        with pytest.raises(UsageError, match="int8 changes the embeddings too much"):
            Runtime(encoder, dtype="int8")
    assert made == [encoder]


def test_the_command_lists_and_removes_a_trial(encoder, folder):
    opened(encoder)
    path = only(folder)
    done = run("cache")
    assert f"{path.name[:12]}" in done.stdout
    assert f"trial of int8       {encoder}" in done.stdout
    (folder / "mine.int8").write_bytes(path.read_bytes())
    (folder / f"{'a' * 64}.int8").write_text("not one of ours")
    assert "removed 1 entry" in run("cache", "--clear").stderr
    assert sorted(p.name for p in folder.iterdir()) == [f"{'a' * 64}.int8", "mine.int8"]
