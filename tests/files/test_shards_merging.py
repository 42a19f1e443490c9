"""Parts joined to the bytes of one run, whatever the format and whenever a run is killed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.files import embed
from fastflow.files.shards import merging as module
from fastflow.files.shards.manifest import Counted, manifest_of, manifest_path, read_manifest
from fastflow.files.shards.merging import merge
from fastflow.files.write import Block, parquet
from fastflow.files.write.outputs import WRITERS, writer_for
from fastflow.progress import format_count

from support.commands import assert_one_sentence, run
from support.memory import grown
from support.runs import check_parts, stopped_at
from support.written import read_back

SUFFIXES = [*WRITERS]


@pytest.fixture
def desk(tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": i if i % 2 else str(i), "text": text, "n": [i]} for i, text in enumerate(sentences[:20])]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:13]))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[13:]))
    return tmp_path


def words(model, *options):
    return ("embed", "a.jsonl", "b.jsonl", "-m", model, *options)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("of", "precision"), [(2, "binary"), slow(1, "uint8"), slow(3, "float32"), slow(25, "float32")]
)
def test_the_bytes_are_those_of_one_run(model, desk, monkeypatch, suffix, of, precision):
    monkeypatch.setattr(module, "ROWS", 4)
    monkeypatch.setattr(parquet, "GROUP", 8)
    options = ["--precision", precision]
    options += ["--keep", "n", "--id-field", "id"] * (suffix != ".npy")
    result = check_parts(suffix, of, *words(model, *options))
    assert result.stderr == f"fastflow: 20 rows of {format_count(of, 'parts')}; written to out{suffix}\n"
    assert len(list(desk.iterdir())) == 7  # the inputs, the parts, the whole and the joined file with their records


NULL = "a.jsonl, line 2: field 'text' is null, not a text"
SKIPPED = {1: NULL, 13: "b.jsonl, line 1: is not JSON", 14: "b.jsonl, line 2: must be"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_that_are_left_out_keep_the_numbers_of_the_rest_in_parts_too(model, desk, monkeypatch, suffix):
    """The list beside the output is the list of one run, also if a run is continued or parts are joined."""
    monkeypatch.setattr(embed, "WINDOW", 4)
    a = (desk / "a.jsonl").read_text().splitlines()
    (desk / "a.jsonl").write_text("\n".join([a[0], '{"id": 1, "text": null}', *a[1:12]]) + "\n")
    (desk / "b.jsonl").write_text('{"text"\n7\n' + (desk / "b.jsonl").read_text())
    given = words(model, "--errors", "skip")
    check_parts(suffix, 3, *given)
    listed = [json.loads(line) for line in (desk / f"whole{suffix}.skipped").read_text().splitlines()]
    assert [each["row"] for each in listed] == [*SKIPPED]
    assert all(each["reason"].startswith(SKIPPED[each["row"]]) for each in listed)
    assert (desk / f"out{suffix}.skipped").read_bytes() == (desk / f"whole{suffix}.skipped").read_bytes()
    vectors, columns = read_back(desk / f"out{suffix}")
    kept = [row for row in range(22) if row not in SKIPPED]
    assert columns.get("index", kept) == kept
    assert len(vectors) == 19
    with stopped_at(2):
        run(*given, "-o", f"again{suffix}", "--quiet")
    assert not (desk / f"again{suffix}.skipped").exists()
    done = run(*given, "-o", f"again{suffix}", "--resume")
    assert (
        f"3 rows are left out (again{suffix}.skipped has the reasons): a.jsonl, line 2; b.jsonl, line 1" in done.stderr
    )
    for end in ("", ".skipped"):
        assert (desk / f"again{suffix}{end}").read_bytes() == (desk / f"whole{suffix}{end}").read_bytes()
    part = desk / "parts" / f"1{suffix}.skipped"
    part.write_text("{}\n" + part.read_text())
    assert_one_sentence(
        run("merge", "parts", "-o", f"new{suffix}"), 1, f"1{suffix}.skipped lists 2 rows, and the manifest 1; make"
    )
    (desk / "b.jsonl").write_text('"good"\n')  # a run that leaves out no row leaves no list, and keeps other files
    assert run("embed", "b.jsonl", "-m", model, "--quiet", "-o", f"out{suffix}").exit_code == 0
    assert not (desk / f"out{suffix}.skipped").exists()
    (desk / f"out{suffix}.skipped").write_text('{"day": 1}')
    assert run("embed", "b.jsonl", "-m", model, "--quiet", "-o", f"out{suffix}").exit_code == 0
    assert (desk / f"out{suffix}.skipped").read_text() == '{"day": 1}'
    refused = f"out{suffix}.skipped is no list of skipped rows, and would be replaced; rename it"
    assert_one_sentence(run(*given, "-o", f"out{suffix}"), 2, refused)
    assert_one_sentence(run("merge", "parts", "-o", f"out{suffix}"), 2, refused)


def make(model, suffix=".npy", of=3):
    for number in range(1, of + 1):
        part = ("--shard", f"{number}/{of}", "-o", f"parts/{number}{suffix}", "--quiet")
        assert run(*words(model, *part)).exit_code == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_part_that_was_changed_is_refused(model, desk, suffix):
    make(model, suffix)
    part = desk / "parts" / f"2{suffix}"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    result = run("merge", "parts", "-o", f"out{suffix}")
    assert_one_sentence(result, 1, f"parts/2{suffix} is not as it was made: its sha256 is another; remove it, then f")
    assert not list(desk.glob("out*"))


def test_parts_that_are_missing_are_counted(model, desk):
    make(model, of=4)
    (desk / "parts" / "2.npy").unlink()
    assert_one_sentence(run("merge", "parts", "-o", "out.npy"), 1, "parts: part 2 of 4 is missing; fastflow status")
    (desk / "parts" / "4.npy").write_bytes(b"short")
    assert_one_sentence(run("merge", "parts", "-o", "out.npy"), 1, "parts: parts 2, 4 of 4 are missing")
    assert not list(desk.glob("out*"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_merge_that_fails_leaves_nothing(model, desk, suffix, monkeypatch):
    """A part whose manifest agrees with its bytes and not with its rows: made by another program."""
    make(model, suffix)
    part = desk / "parts" / f"3{suffix}"
    part.write_bytes((desk / "parts" / f"1{suffix}").read_bytes()[:-4])
    read_manifest(manifest_path(part)).add_hash(part).write(part)
    if suffix in (".jsonl", ".csv"):
        monkeypatch.setattr(module.OutputFile, "append", lambda self, data: (_ for _ in ()).throw(KeyError("late")))
    with pytest.raises(FastflowError):
        merge(desk / "parts", desk / f"out{suffix}")
    assert not list(desk.glob("out*"))


def test_parts_in_an_unknown_format_are_refused_by_name(model, desk):
    make(model, of=2)
    for number in (1, 2):
        manifest = read_manifest(manifest_path(desk / "parts" / f"{number}.npy"))
        replace(manifest, part=f"{number}.npz").write(desk / "parts" / f"{number}.npy")
    said = "parts/1.npz: unknown suffix '.npz'; the output can be .npy"
    for words in (("merge", "parts", "-o", "out.npy"), ("status", "parts")):
        assert_one_sentence(run(*words), 2, said)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_memory_does_not_grow_with_the_parts(tmp_path, run_python, suffix):
    meta = {"fingerprint": "f", "options": {}}
    for name, rows in (("small", 100), ("large", 80_000)):
        (tmp_path / name).mkdir()
        for number in (1, 2):
            part = tmp_path / name / f"{number}{suffix}"
            manifest = manifest_of(part, (number, 2), ["in.txt"], [Counted(2 * rows, 1, "0" * 64)], meta, [])
            with writer_for(part)(part, {"fingerprint": "f"}) as writer:
                writer.begin()
                for start in range(0, rows, 1000):
                    vectors = np.zeros((min(1000, rows - start), 128), np.float32)
                    first = (number - 1) * rows + start
                    at = range(first, first + len(vectors))
                    writer.write(Block(at, [""] * len(at), vectors))
                writer.finish()
            manifest.add_hash(part).write(part)
    code = "merge(Path('{0}'), Path('{0}' + sys.argv[1]))"
    before = "from pathlib import Path\nfrom fastflow.files.shards.merging import merge\n" + code.format("small")
    assert grown(run_python, before, code.format("large"), suffix) < 40_000
    least = 0 if suffix == ".parquet" else 60e6  # zeros are short in Parquet
    assert (tmp_path / f"large{suffix}").stat().st_size > least


CODE = """
import os, random, signal, sys
import fastflow.files.embed as embed
import fastflow.files.windows, fastflow.files.shards.merging as merging, fastflow.runtime
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
        options = ["--keep", "n"] * (suffix != ".npy")
        command = ["embed", "in.jsonl", "-m", model, "--threads", "1", "--quiet", "--resume", *options, *how]
        kills += until_done([*command, "--shard", f"{number}/2", "-o", str(part)], check, chance, 30)

    whole, out = Path(f"whole{suffix}").read_bytes(), folder / f"out{suffix}"
    def check(code):
        assert not out.exists() or out.read_bytes() == whole
    kills += until_done(["merge", str(folder), "-o", str(out), "--quiet"], check, chance, 12)
    assert out.read_bytes() == whole
    names = (path.name for path in folder.iterdir() if not path.name.endswith(".run.json"))
    left = sorted(name for name in names if not name.startswith("fastflow-") or (folder / name).stat().st_size)
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
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"text": "{text}", "n": {at}}}\n' for at, text in enumerate([*sentences[:40], *sentences[15:25]])]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    (tmp_path / "parts").mkdir()
    keep = ["--keep", "n"] * (suffix != ".npy")
    assert run("embed", "in.jsonl", "-m", model, "-o", f"whole{suffix}", "--quiet", *keep).exit_code == 0
    done = run_python(CODE, tmp_path / "parts", model, suffix)
    assert done.returncode == 0, done.stdout + done.stderr
    kills = [int(line) for line in done.stdout.splitlines()]
    assert len(kills) == 3
    assert min(kills) >= 3  # some were killed
