"""Disks that fill, memory that ends, clocks that jump, processors taken away: a sentence, or the same bytes."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest

from support.matrices import make_vectors
from support.places import USERS
from support.processes import run_limited

pytestmark = pytest.mark.slow
MAIN = "import sys; from fastflow.cli import main; main(sys.argv[1:])"
FIT = ("--method", "flow", "--levels", "1", "--depth", "1", "--epochs", "1", "--save-steps", "2", "--background", "0")
MEMORY = """
import resource, sys
from pathlib import Path
import fastflow, fastflow.runtime, fastflow.files.embed, fastflow.search
from fastflow.cli import main
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + int(sys.argv[1]), held + int(sys.argv[1])))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
main(sys.argv[2:])
"""
CLOCK = """
import random, sys, time
rng, real = random.Random(0), time.time
time.time = lambda: rng.choice([0.0, -1e9, real() - 1e6, real() + 1e9])
time.time_ns = lambda: int(time.time() * 1e9)
from fastflow.cli import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, sentences):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "in.txt").write_text("".join(f"{text}\n" for text in sentences))
    np.save(folder / "in.npy", make_vectors(400))
    return folder


def command(name, inputs, model, encoder, vector_model, out):
    return {
        "transform": ("transform", inputs / "in.npy", "-m", vector_model, "--quiet", "-o", out / "x.npy"),
        "cache": ("embed", inputs / "in.txt", "-m", model, "--quiet", "--cache", out / "c.db", "-o", out / "x.npy"),
        "train": ("train", inputs / "in.txt", "--encoder", encoder, *FIT, "--cache-folder", out / "c", "-o", out / "m"),
        "distill": ("distill", model, inputs / "in.txt", "-o", out / "m"),
        "export": ("export", model, "--to", "st", "-o", out / "m"),
    }[name]


def last_line(done):
    assert "Traceback" not in done.stderr, done.stderr
    assert "please report it" not in done.stderr, done.stderr
    said = done.stderr.splitlines()[-1]
    assert re.match("(fastflow|Error): ", said), done.stderr
    return said


def made(out):
    """The files of what was made, with their bytes; caches are not compared."""
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.relative_to(out).parts[0] in ("x.npy", "m")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory, inputs, model, bert, vector_model):
    found = {}

    def of(name):
        if name not in found:
            out = tmp_path_factory.mktemp(name)
            words = [sys.executable, "-c", MAIN, *map(str, command(name, inputs, model, bert, vector_model, out))]
            assert run_limited(words, env=USERS, cwd=out, seconds=600).returncode == 0
            found[name] = out
        return found[name]

    return of


@pytest.mark.parametrize("bytes_", [1, 16_384])
@pytest.mark.parametrize("name", ["transform", "cache", "train", "distill", "export"])
def test_a_disk_that_fills_is_a_sentence_and_nothing_half_made(
    name, bytes_, inputs, model, bert, vector_model, tmp_path, run_python, whole
):
    words = command(name, inputs, model, bert, vector_model, tmp_path)

    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))

    done = run_python(MAIN, *words, preexec_fn=small, env=USERS | {"PYTHONDONTWRITEBYTECODE": "1"})
    if done.returncode:
        assert done.returncode == 1, done.stderr
        assert re.search("cannot be (written|read)|File too large|disk|space", last_line(done))
        assert made(tmp_path) == {}
    done = run_python(MAIN, *words, *["--resume"] * (name in ("train", "distill", "cache")))
    assert done.returncode == 0, done.stderr
    assert made(tmp_path) == made(whole(name))
    if name == "cache":
        with closing(sqlite3.connect(tmp_path / "c.db")) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# OpenBLAS, of NumPy, may end the process itself: by its own message, between some 40 and 200 MB also by a signal
@pytest.mark.parametrize("megabytes", [0, 4, 24, 768])
@pytest.mark.parametrize("name", ["embed", "transform", "info"])
def test_memory_that_ends_is_a_sentence(name, megabytes, inputs, vector_model, tmp_path, run_python):
    words = {
        "embed": ("embed", inputs / "in.txt", "--quiet", "-o", tmp_path / "x.npy"),
        "transform": ("transform", inputs / "in.npy", "-m", vector_model, "--quiet", "-o", tmp_path / "x.npy"),
        "info": ("info", "default"),
    }[name]
    done = run_python(MEMORY, megabytes << 20, *words)
    if done.returncode:
        assert done.returncode == 1, (done.returncode, done.stderr)
        if not done.stderr.startswith("OpenBLAS error: Memory allocation"):
            assert re.search("out of memory|no more threads|annot allocate memory", last_line(done))
        assert not (tmp_path / "x.npy").exists()
    assert done.returncode == 0 or megabytes < 768


@pytest.mark.whole
@pytest.mark.parametrize("name", ["cache", "train", "distill", "transform"])
def test_a_clock_that_jumps_changes_no_byte(name, inputs, model, bert, vector_model, tmp_path, run_python, whole):
    first, second = tmp_path / "first", shutil.copytree(whole(name), tmp_path / "second")
    first.mkdir()
    done = run_python(CLOCK, *command(name, inputs, model, bert, vector_model, first))
    assert done.returncode == 0, done.stderr
    for out in (first, second):
        for path in out.rglob("*"):
            os.utime(path, (0, 0))  # as if made before everything else
        words = command(name, inputs, model, bert, vector_model, out)
        done = run_python(CLOCK, *words, *["--resume"] * (name == "cache"))
        assert done.returncode in (0, 1, 2), done.stderr  # an output that is there may be refused
        assert "Traceback" not in done.stderr
        assert made(out) == made(whole(name))
    assert made(first)


def test_the_affinity_of_a_process_bounds_its_threads(run_python, model):
    code = "import fastflow, sys, json; print(json.dumps(fastflow.Runtime(sys.argv[1], 'cpu').info()['details']))"
    one = min(os.sched_getaffinity(0))
    done = run_python(code, model, preexec_fn=lambda: os.sched_setaffinity(0, {one}))
    assert done.returncode == 0, done.stderr
    assert any(re.search(r"\b1 threads", line) for line in json.loads(done.stdout)), done.stdout
