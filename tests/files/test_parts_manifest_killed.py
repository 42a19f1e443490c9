"""Parts and merges that are killed at any moment: the rest resumes or is whole, and the bytes are those of one run.

A run is killed before one of its operations on files in the folder, which the interpreter's audit events count; seeds
choose which. Each run is a child of one process that has imported everything.
"""

from __future__ import annotations

import pytest

from fastflow.files.write.writers import WRITERS

from support.commands import run

SUFFIXES = list(WRITERS)

CODE = """
import os, random, signal, sys
import fastflow.files.embed as embed
import fastflow.files.encoding, fastflow.files.parts.merging as merging, fastflow.runtime
from pathlib import Path
from fastflow.cli import main

folder, model, suffix = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
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

def until_done(arguments, check, chance, most):
    # how often it was killed before
    for attempt in range(20):
        code = child(arguments, chance.randrange(1, most) if attempt < 4 else None)
        assert code in (0, -9), code
        check(code)
        if code == 0:
            return attempt
    raise AssertionError("it never ended")

def try_to_kill(folder, how, chance):
    kills = 0
    for number in (1, 2):
        part = folder / f"{number}{suffix}"
        def check(code):
            if code == 0:
                assert part.exists()
        keeps = suffix != ".npy"
        options = ["--keep", "n"] if keeps else ["--log-prob"] * (suffix != ".npy")
        command = ["embed", "in.jsonl", "-m", model, "--threads", "1", "--quiet", "--resume", *options, *how]
        kills += until_done([*command, "--shard", f"{number}/2", "-o", str(part)], check, chance, 30)

    whole, out = Path(f"whole{suffix}").read_bytes(), folder / f"out{suffix}"
    def check(code):
        assert not out.exists() or out.read_bytes() == whole
    kills += until_done(["merge", str(folder), "-o", str(out), "--quiet"], check, chance, 12)
    assert out.read_bytes() == whole
    left = sorted(path.name for path in folder.iterdir())
    assert left == sorted([out.name, *(f"{n}{suffix}{end}" for n in (1, 2) for end in ("", ".shard.json"))]), left
    return kills

for seed, how in (1, []), (2, ["--dedupe"]), (3, ["--cache", "c.db"]):
    (folder / str(seed)).mkdir()
    print(try_to_kill(folder / str(seed), how, random.Random(seed)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_whatever_the_moment_the_bytes_are_those_of_one_run(
    model, tmp_path, sentences, run_python, monkeypatch, suffix
):
    """The seeds take turns with --dedupe and --cache, of which a text comes again in each part and in the other."""
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"text": "{text}", "n": {at}}}\n' for at, text in enumerate([*sentences[:40], *sentences[15:25]])]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    (tmp_path / "parts").mkdir()
    keep = ["--keep", "n"] if suffix != ".npy" else ["--log-prob"] * (suffix != ".npy")
    assert run("embed", "in.jsonl", "-m", model, "-o", f"whole{suffix}", "--quiet", *keep).exit_code == 0
    done = run_python(CODE, tmp_path / "parts", model, suffix)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = [int(line) for line in done.stdout.splitlines()]
    assert len(kills) == 3
    assert min(kills) >= 3  # some were killed
