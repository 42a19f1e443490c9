"""``fastflow pull`` and ``push`` with the Hub's own client, against a server of its HTTP layout on this machine."""

from __future__ import annotations

import json
import re
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from model.hub import LARGE, Hub, serving

from fastflow import FastflowError, Runtime
from fastflow.model import sharing
from fastflow.model.verify import verify

from support.places import USERS
from support.processes import run_limited
from support.sentence_dirs import make_directory, pooling

pytestmark = pytest.mark.slow
REPO = "someone/model"


@pytest.fixture
def hub():
    return Hub()


@pytest.fixture
def fastflow(hub, tmp_path):
    """Runs the command with the Hub here; returns (exit status, standard output, standard error)."""
    with serving(hub) as address:

        def run(*words, program="from fastflow.cli import main; main()", **more):
            env = USERS | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_test"}
            env |= {"HF_HUB_DISABLE_XET": "1"} | more
            env = {name: value for name, value in env.items() if not name.endswith("_OFFLINE")}
            command = [sys.executable, "-c", program, *map(str, words)]
            done = run_limited(command, env=env, cwd=tmp_path, seconds=120)
            return done.returncode, done.stdout, done.stderr

        yield run


def files_of(folder):
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items()}


@pytest.fixture
def commit(hub, model):
    """The repository has a model, with files beside it that are not taken."""
    return hub.add(REPO, {**files_of(model), ".gitattributes": b"*", "pytorch_model.bin": b"pickle", "run.py": b"x"})


def test_a_pulled_model_is_the_one_that_was_sent(fastflow, commit, model, sentences, tmp_path):
    done = fastflow("pull", REPO, "-o", "here")
    assert done[:2] == (0, f"{REPO}@{commit}\n")
    assert "left out .gitattributes, pytorch_model.bin, run.py" in done[2]
    here = files_of(tmp_path / "here")
    record = json.loads(here.pop("hub.json"))
    assert here == files_of(model)
    assert record["files"] == {name: sha256(data).hexdigest() for name, data in here.items()}
    assert (record["repository"], record["commit"]) == (REPO, commit)
    assert np.array_equal(Runtime(tmp_path / "here").encode(sentences[:4]), Runtime(model).encode(sentences[:4]))
    assert verify(tmp_path / "here")[0].startswith(f"{len(here) - 1} files match")
    assert list(tmp_path.glob(".here*")) == []


@pytest.mark.parametrize("revision", ["", "@main", "@COMMIT"])
def test_a_second_pull_compares(fastflow, hub, commit, revision):
    name = REPO + revision.replace("COMMIT", commit)
    assert fastflow("pull", name, "-o", "here", "-q") == (0, f"{REPO}@{commit}\n", "")
    del hub.asked[:]
    assert fastflow("pull", name, "-o", "here", "-q") == (0, f"{REPO}@{commit}\n", "")
    assert len(hub.asked) == (0 if "COMMIT" in revision else 1)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (lambda here: (here / "README.md").write_text("x"), r"differs from someone/model@\w+: remove here, and"),
        (lambda here: (here / "README.md").unlink(), "here/README.md is missing, a file of someone/model@"),
        (lambda here: (here / "modules.json").write_text("[]"), "here holds modules.json, which is not of someone/"),
        (lambda here: (here / "hub.json").write_text("{}"), "here/hub.json is damaged: remove here, and pull again"),
        (lambda here: (here / "hub.json").unlink(), "here exists already, and was not pulled from the Hub; remove it"),
    ],
)
def test_a_directory_that_is_not_as_pulled_is_refused(fastflow, commit, tmp_path, monkeypatch, fault, sentence):
    fastflow("pull", f"{REPO}@{commit}", "-o", "here")
    fault(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FastflowError, match=sentence):
        sharing.pull(f"{REPO}@{commit}", Path("here"))


def test_another_commit_needs_another_directory(fastflow, hub, commit, model):
    fastflow("pull", REPO, "-o", "here")
    newer = hub.add(REPO, files_of(model) | {"README.md": b"newer"})
    code, _, error = fastflow("pull", REPO, "-o", "here")
    assert code == 1
    assert error == f"fastflow: here holds {REPO}@{commit}, not {REPO}@{newer}: give another -o, or remove it\n"
    assert fastflow("pull", f"{REPO}@{commit}", "-o", "old", "-q")[:2] == (0, f"{REPO}@{commit}\n")
    assert fastflow("pull", REPO, "-o", "new", "-q")[:2] == (0, f"{REPO}@{newer}\n")


@pytest.mark.parametrize("name", ["calibration.safetensors", "README.md"])
def test_a_file_that_is_not_the_listed_one_is_refused(fastflow, hub, commit, model, tmp_path, name):
    """One that is listed by git's hash, and a large one, by sha256; of the same length."""
    data = (model / name).read_bytes()
    hub.spoilt[name] = bytes([data[0] ^ 1]) + data[1:]
    code, out, error = fastflow("pull", REPO, "-o", "here", "-q")
    assert (code, out) == (1, "")
    assert f"fastflow: {name} of {REPO}@{commit} came with other bytes than the Hub lists: try again" in error
    assert not (tmp_path / "here").exists()
    hub.spoilt.clear()
    assert fastflow("pull", REPO, "-o", "here", "-q")[0] == 0


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"pytorch_model.bin": b"", "config.json": b"{}"}, "no weights in safetensors: pytorch_model.bin can run code"),
        ({"config.json": b"{}"}, "no weights in safetensors$"),
        ({"a/../../b.safetensors": b""}, "a file called '?a/../../b.safetensors'?, which has no place"),
        ({"hub.json": b"", "m.safetensors": b""}, "holds a file called '?hub.json'?"),
    ],
)
def test_what_cannot_be_taken_is_a_sentence(fastflow, hub, tmp_path, files, sentence):
    hub.add(REPO, files)
    code, out, error = fastflow("pull", REPO, "-o", "here", "-q")
    assert (code, out) == (1, "")
    assert error.count("\n") == 1
    assert re.search(sentence, error.strip())
    assert not (tmp_path / "here").exists()
    assert not [line for line in hub.asked if "resolve" in line]


def test_what_is_not_there_is_a_sentence(fastflow, commit):
    for name in ("someone/nothing", f"{REPO}@no-such"):
        code, _, error = fastflow("pull", name, "-o", "here", "-q")
        assert code == 1
        assert error.startswith(f"fastflow: {name.partition('@')[0]} on the Hub: ")
        assert error.count("\n") == 1


def test_push_sends_a_model_that_pull_takes(fastflow, hub, model, tmp_path):
    code, out, error = fastflow("push", model, REPO, "--private")
    assert (code, "left out" in error) == (0, False), error
    name = out.strip()
    assert fastflow("pull", name, "-o", "here", "-q")[:2] == (0, f"{name}\n")
    here = files_of(tmp_path / "here")
    assert here.pop("hub.json")
    assert here == files_of(model) == hub.commits[REPO][-1]
    assert fastflow("push", "here", REPO, "-q")[0] == 0
    assert "hub.json" not in hub.commits[REPO][-1]


def test_a_large_file_that_the_hub_has_is_not_sent_again(fastflow, hub, model):
    for _ in range(2):
        code, _, error = fastflow("push", model, REPO)
        assert code == 0, error
    sent = [line for line in hub.asked if line.startswith("PUT")]
    assert len(sent) == len(set(sent)) == sum(len(data) >= LARGE for data in files_of(model).values())


@pytest.mark.parametrize(
    ("file", "there", "token", "sentence"),
    [
        (("README.md", "other"), {}, "hf_test", "README.md is damaged: its sha256 differs"),
        (("x.bin", "pickle"), {}, "hf_test", "holds files that fastflow.json does not list: x.bin"),
        (None, {"modules.json": b"[]"}, "hf_test", "someone/model holds modules.json, which MODEL lacks: remove it th"),
        (None, {}, "hf_other", "fastflow: someone/model on the Hub: "),
    ],
)
def test_a_push_that_cannot_be_is_a_sentence(fastflow, hub, model_copy, file, there, token, sentence):
    if there:
        hub.add(REPO, there)
    if file:
        (model_copy / file[0]).write_text(file[1])
    before = {name: list(commits) for name, commits in hub.commits.items()}
    code, out, error = fastflow("push", model_copy, REPO, HF_TOKEN=token)
    assert (code, out, hub.commits) == (1, "", before)
    assert sentence.replace("MODEL", str(model_copy)) in error.splitlines()[-1]
    assert not file or hub.asked == []


def test_pickles_are_not_sent(fastflow, hub, bert, tmp_path):
    directory = make_directory(tmp_path / "st", bert, [pooling("mean")])
    (directory / "pytorch_model.bin").write_bytes(b"pickle")
    code, _, error = fastflow("push", directory, REPO)
    assert (code, hub.asked) == (1, [])
    assert "holds pytorch_model.bin, which can run code when opened: remove it" in error


def test_what_the_hub_has_after_a_push_is_compared(fastflow, hub, model):
    hub.spoilt["README.md"] = b"other"
    code, out, error = fastflow("push", model, REPO, "-q")
    assert (code, out) == (1, "")
    assert re.search(rf"{REPO}@\w+ holds other bytes than {model} in README.md: push again", error)


NO_SOCKET = """
import os, sys

def refuse(event, _):
    if event.startswith("socket."):
        os.write(2, f"socket event {event}".encode())
        os._exit(99)

sys.addaudithook(refuse)
from fastflow.cli import main
main()
"""


def test_a_local_path_never_touches_the_network(fastflow, commit, hub, model, tmp_path):
    """A process that ends at the first event of a socket, the look-up of a name included."""
    shutil.copytree(model, tmp_path / "someone" / "model")
    (tmp_path / "in.txt").write_text("a text\n")
    for words in (
        ["embed", "in.txt", "-m", REPO],
        ["similarity", "a text", "another", "-m", "./someone/model"],
        ["info", REPO],
        ["verify", REPO],
        ["embed", "in.txt"],
    ):
        code, _, error = fastflow(*words, program=NO_SOCKET)
        assert code == 0, error
    for words in (["pull", REPO, "-o", "here"], ["push", REPO, REPO]):
        code, _, error = fastflow(*words, program=NO_SOCKET)
        assert (code, "is a path on this machine" in error) == (2, True)
    assert hub.asked == []
    shutil.rmtree(tmp_path / "someone")
    assert fastflow("pull", REPO, "-o", "here", program=NO_SOCKET)[0] == 99
