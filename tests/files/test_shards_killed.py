"""Parts and merges that are killed at any moment: the rest resumes or is whole, and the bytes are those of one run.

A run is killed before one of its operations on files in the folder, which the interpreter's audit events count; seeds
choose which. Each run is a child of one process that has imported everything.
"""

from __future__ import annotations

import pytest
from commands import run

from fastflow.files.writers import WRITERS

SUFFIXES = list(WRITERS)
HOWS = ([], ["--dedupe"], ["--cache", "c.db"])

CODE = """
import os, random, signal, sys
import fastflow.files.embed as embed
import fastflow.files.encoding, fastflow.files.merging as merging, fastflow.runtime
from pathlib import Path
from fastflow.cli import main

folder, model, suffix, seed, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]
random, kills = random.Random(seed), 0
embed.WINDOW = 8
if suffix == ".parquet":
    import pyarrow.parquet

EVENTS = ("open", "os.rename", "os.remove")

def child(arguments, last):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seen = 0
    def hook(event, given):
        nonlocal seen
        if event in EVENTS and isinstance(given[0], (str, os.PathLike)) and str(given[0]).startswith(str(folder)):
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    fsync = os.fsync
    def counted(number):
        hook("open", (str(folder),))
        fsync(number)
        hook("open", (str(folder),))
    os.fsync = counted
    try:
        main(arguments)
    except SystemExit as error:
        os._exit(error.code or 0)

def until_done(arguments, check, most):
    global kills
    for attempt in range(20):
        code = child(arguments, random.randrange(1, most) if attempt < 4 else None)
        assert code in (0, -9), code
        kills += code == -9
        check(code)
        if code == 0:
            return
    raise AssertionError("it never ended")

for number in (1, 2):
    part = folder / f"{number}{suffix}"
    def check(code):
        if code == 0:
            assert part.exists()
    keeps = suffix in (".npz", ".jsonl", ".parquet", ".db")
    options = ["--keep", "n"] if keeps else ["--log-prob"] * (suffix != ".npy")
    command = ["embed", "in.jsonl", "-m", model, "--threads", "1", "--quiet", "--resume", *options, *how]
    until_done([*command, "--shard", f"{number}/2", "-o", str(part)], check, 30)

whole, out = Path(f"whole{suffix}").read_bytes(), folder / f"out{suffix}"
def check(code):
    assert not out.exists() or out.read_bytes() == whole
until_done(["merge", str(folder), "-o", str(out), "--quiet"], check, 12)
assert out.read_bytes() == whole
left = sorted(path.name for path in folder.iterdir())
assert left == sorted([out.name, *(f"{n}{suffix}{end}" for n in (1, 2) for end in ("", ".shard.json"))]), left
print(kills)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_the_moment_the_bytes_are_those_of_one_run(
    model, tmp_path, sentences, run_python, monkeypatch, suffix, seed
):
    """The seeds take turns with --dedupe and --cache, of which a text comes again in each part and in the other."""
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"text": "{text}", "n": {at}}}\n' for at, text in enumerate([*sentences[:40], *sentences[15:25]])]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    (tmp_path / "parts").mkdir()
    keep = ["--keep", "n"] if suffix in (".npz", ".jsonl", ".parquet", ".db") else ["--log-prob"] * (suffix != ".npy")
    assert run("embed", "in.jsonl", "-m", model, "-o", f"whole{suffix}", "--quiet", *keep).exit_code == 0
    done = run_python(CODE, tmp_path / "parts", model, suffix, seed, *HOWS[seed - 1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= 3  # some were killed
