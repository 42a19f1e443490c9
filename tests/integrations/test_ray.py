"""``embed --ray``: the address of a cluster, and on a real one the file of one run, whatever fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from fastflow import FastflowError
from fastflow.integrations import ray as integration
from fastflow.integrations.ray import check_address, cluster, describe_refusal, embed_on_cluster, find_sentence

from support.builders import make_sentences
from support.commands import run
from support.places import USERS
from support.processes import run_limited
from support.rays import CLIENTS, SETTINGS, dying, started

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")  # of Ray's package
ROWS, CPUS = 400, 3


def test_addresses_that_are_known():
    for address in ("local", "auto", "127.0.0.1:6379", "head:1", "[::1]:6379"):
        check_address(address)


@pytest.fixture
def closed(monkeypatch):
    """HOST:PORT at which no process listens, and a Ray that must not try it."""
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray tries a closed port for minutes"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{free.getsockname()[1]}"


def refused(address: str, sentence: str) -> None:
    with pytest.raises(FastflowError, match=f"^--ray {sentence}"), cluster(address):
        pass


def test_a_closed_port_is_refused_at_once_by_its_name_and_leaves_no_folder(closed, tmp_path, monkeypatch):
    refused(closed, f"{closed}: no cluster of Ray answers there: .*refused")
    with pytest.raises(FastflowError, match="no cluster of Ray answers there"):
        embed_on_cluster(["in.txt"], tmp_path / "x.npy", closed, 1, resume=False, quiet=True)
    assert list(tmp_path.iterdir()) == []
    for address, message in (
        (closed, f"auto: no cluster of Ray answers at {closed}: .*refused"),
        ("ray://head:10001", "ray://head:10001: Ray Client"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        refused("auto", message)


CHILD = "import sys, time; print(flush=True); time.sleep(600)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {CHILD!r}]); time.sleep(600)"


@pytest.mark.slow
def test_a_start_that_fails_leaves_no_process_of_it(monkeypatch):
    """Ray knows its processes only after a whole start; others of this process stay."""
    began = []

    def start(*words):
        began.append(subprocess.Popen([sys.executable, "-c", PARENT, *words], stdout=subprocess.PIPE))
        began[-1].stdout.readline()  # its own child runs

    def init(*_, **__):
        start(ray.__file__)
        start()
        raise Exception("the node timed out\nand more")

    start(ray.__file__)
    monkeypatch.setattr(ray, "init", init)
    try:
        refused("local", "local: Ray did not start on this machine: the node timed out$")
        assert [process.poll() is None for process in began] == [True, False, True]
        assert began[1].stdout.read() == b""  # its child held the pipe too
    finally:
        for process in began:
            for child in psutil.Process(process.pid).children() if process.poll() is None else []:
                child.kill()
            process.kill()
            process.communicate()


def test_a_cluster_that_refuses_the_client_answers(monkeypatch):
    error = ConnectionError("Failed to connect to Ray cluster at head:1")
    error.__cause__ = RuntimeError("ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    without = "the cluster refuses this client without its token: set RAY_AUTH_MODE=token"
    assert describe_refusal("head:1", error) == without
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert describe_refusal("head:1", error) == without
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    remedy = "copy ~/.ray/auth_token from its head, or set RAY_AUTH_TOKEN"
    assert describe_refusal("head:1", error) == f"the cluster refuses this client's token: {remedy}"


def test_the_sentence_is_found_in_the_traceback_of_a_node():
    for text, sentence in (
        ("Traceback:\n  File x\nfastflow.errors.FastflowError: no model\n", "no model"),
        ("ValueError: 3\n\nfastflow.errors.UsageError: first\nfastflow.files.read.RowFault: last", "last"),
        ("Traceback:\nKeyError: 'x'\n", "Ray: KeyError: 'x'"),
        ("", "Ray: it gives no reason"),
    ):
        assert find_sentence(text) == sentence, text


@pytest.fixture(scope="module")
def address():
    home = Path.home() / ".ray"
    before = home.exists()
    with started(cpus=CPUS) as address:
        yield address
    assert home.exists() == before, "Ray wrote into the home directory"


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """The working directory, with an input and a folder for the outputs."""
    monkeypatch.chdir(tmp_path)
    rows = [{"key": f"k{i}", "text": text} for i, text in enumerate(make_sentences(ROWS, seed=5))]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def command(*words, env=CLIENTS):
    program = "from fastflow.cli import main; main()"
    return run_limited([sys.executable, "-c", program, *words], seconds=300, env=USERS | env)


@pytest.mark.whole
def test_the_command_writes_the_file_of_one_run(address, desk, model):
    words = ["embed", "in.jsonl", "-m", model, "--id-field", "key", "--precision", "int8"]
    assert run(*words, "-o", "whole.parquet", "--quiet").exit_code == 0
    done = command(*words, "--ray", address, "-o", "out.parquet")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"fastflow: {ROWS} texts in {CPUS} parts; written to out.parquet\n")
    assert Path("out.parquet").read_bytes() == Path("whole.parquet").read_bytes()
    assert not Path("out.parquet.parts").exists()


@pytest.mark.whole
def test_a_worker_killed_in_the_middle_loses_and_doubles_no_row(address, desk, model, monkeypatch):
    """Ray starts the task again, and it continues after the rows that are finished."""
    mark = desk / "killed"
    assert run("embed", "in.jsonl", "-m", model, "-o", "whole.npy", "--quiet").exit_code == 0
    monkeypatch.setattr(integration, "cluster", lambda address: nullcontext())  # this process is connected
    monkeypatch.setattr(integration, "make_part", dying(mark))
    words = [str(desk / "in.jsonl"), "-m", str(model)]
    assert embed_on_cluster(words, desk / "out.npy", address, 1, resume=False, quiet=True) == (ROWS, CPUS)
    pid, rows = map(int, mark.read_text().split())
    assert 0 < rows < ROWS // CPUS
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert not Path("out.npy.parts").exists()


@pytest.mark.whole
def test_a_failure_on_a_node_is_one_sentence_and_the_rest_is_continued(address, desk, model):
    lines = [*make_sentences(ROWS - 5, seed=5), "dog " * 80, *["a dog"] * 4]
    Path("in.txt").write_text("\n".join(lines) + "\n")
    words = ["embed", "in.txt", "-m", model, "--ray", address, "-o", "out.npy"]
    done = command(*words, "--quiet", "--truncate", "error")
    said, note = done.stderr.splitlines()[-2:]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert said == f"fastflow: {desk}/in.txt, line {ROWS - 4}: longer than the model's 64 tokens"
    assert note.startswith(f"fastflow: finished rows are in {desk}/out.npy.parts; the same command with --resume cont")
    assert not Path("out.npy").exists()
    shown = run("status", "out.npy.parts").stdout
    assert f"of {CPUS} parts of {desk}/in.txt, {ROWS} rows" in shown
    assert f"--shard {CPUS}/{CPUS} -o" in shown
    assert run(*words[:4], "-o", "whole.npy", "--quiet").exit_code == 0
    done = command(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()


@pytest.mark.whole
def test_a_run_without_resume_begins_again_and_keeps_the_files_of_others(address, desk, model, monkeypatch):
    monkeypatch.setattr(integration, "cluster", lambda address: nullcontext())
    folder = desk / "out.npy.parts"
    folder.mkdir()
    (folder / "diary.txt").write_text("dear")
    part = ["--shard", "1/2", "-o", str(folder / "part-00001-of-00002.npy"), "--quiet"]
    assert run("embed", "in.jsonl", "-m", model, "--normalize", *part).exit_code == 0
    given = [str(desk / "in.jsonl"), "-m", str(model)], desk / "out.npy", address, 1
    assert embed_on_cluster(*given, resume=False, quiet=True) == (ROWS, CPUS)
    assert [path.name for path in folder.iterdir()] == ["diary.txt"]
    assert run("embed", "in.jsonl", "-m", model, "--normalize", *part).exit_code == 0
    with pytest.raises(FastflowError, match="are of two sets of options: normalized is"):
        embed_on_cluster(*given, resume=True, quiet=True)


@pytest.mark.whole
def test_strips_of_pairs_are_compared_by_workers(address, desk):
    np.save("x.npy", np.random.default_rng(0).normal(size=(100_000, 5)).astype(np.float32))
    words = ["duplicates", "x.npy", "--above", "0.999"]
    assert run(*words, "-o", "whole.csv", "--quiet").exit_code == 0
    done = command(*words, "--ray", address, "-o", "out.csv")
    assert done.returncode == 0, done.stderr
    assert "compare: 3 of 3 strips" in done.stderr
    assert Path("out.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert len(Path("out.csv").read_text().splitlines()) > 1000


@pytest.mark.whole
def test_a_cluster_that_wants_a_token_says_so(address, desk, model):
    once = SETTINGS | {"RAY_gcs_server_port_wait_time_s": "1"}  # of a client: so often it asks, a second apart
    done = command("embed", "in.jsonl", "-m", model, "--ray", address, "-o", "out.npy", env=once)
    assert done.returncode == 1
    message = f"fastflow: --ray {address}: the cluster refuses this client without its token: set RAY_AUTH_MODE=token"
    assert done.stderr.splitlines()[-1] == message
    assert [path.name for path in desk.iterdir()] == ["in.jsonl"]
