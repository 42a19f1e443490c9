"""The report on a folder of parts: what is whole, begun, missing, and commands that can be typed as they are."""

from __future__ import annotations

import shlex

import pytest

from fastflow.files import embed as module
from fastflow.files.parts.manifest import manifest_path, read_manifest
from fastflow.files.parts.status import Status
from fastflow.files.write.outputs import NpyFile

from support.commands import assert_one_sentence, run
from support.runs import stopped_at


@pytest.fixture
def desk(tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "WINDOW", 16)
    (tmp_path / "my texts.txt").write_text("".join(text + "\n" for text in sentences[:200]))
    return tmp_path


def test_states_and_commands(model, desk):
    given = ("-m", str(model), "my texts.txt")
    for number in (1, 3):
        run("embed", *given, "--shard", f"{number}/4", "-o", "parts", "--quiet")
    part = desk / "parts" / "part-00002-of-00004.npy"
    with stopped_at(2):
        run("embed", *given, "--shard", "2/4", "-o", part, "--quiet")
    head, *lines = run("status", "parts").stdout.splitlines()
    assert head.startswith("parts: 2 of 4 parts of my texts.txt, 200 rows, model ")
    command = f"fastflow embed --model {model} 'my texts.txt' --shard"
    assert [line.split("  ") for line in lines[:4]] == [
        ["1/4", "part-00001-of-00004.npy", "present"],
        ["2/4", "part-00002-of-00004.npy", "32 of 50 rows"],
        ["3/4", "part-00003-of-00004.npy", "present"],
        ["4/4", "part-00004-of-00004.npy", "missing"],
    ]
    assert [" ".join(sorted(shlex.split(line))) for line in lines[5:]] == [
        " ".join(sorted(shlex.split(f"{command} 2/4 -o parts/part-00002-of-00004.npy --resume"))),
        " ".join(sorted(shlex.split(f"{command} 4/4 -o parts/part-00004-of-00004.npy"))),
    ]
    for line in lines[5:]:
        assert run(*shlex.split(line)[1:], "--quiet").exit_code == 0
    last = (
        "Every part is there; this joins them, and first compares the sha256 of each: fastflow merge parts -o OUT.npy"
    )
    assert run("status", "parts").stdout.splitlines()[-1] == last
    assert run("merge", "parts", "-o", "out.npy").exit_code == 0


@pytest.mark.slow
def test_a_part_without_a_sound_manifest_is_made_again(model, desk):
    for number in (1, 2):
        run("embed", "-m", model, "my texts.txt", "--shard", f"{number}/2", "-o", "parts", "--quiet")
    manifest = manifest_path(desk / "parts" / "part-00001-of-00002.npy")
    manifest.write_text("{")
    message = f"{manifest.relative_to(desk)} is not JSON: Expecting property name enclosed in double quotes"
    assert_one_sentence(run("status", "parts"), 1, message)
    assert_one_sentence(run("merge", "parts", "-o", "x.npy"), 1, "; remove it and make the part again")
    manifest.unlink()
    _, first, second, _, command = Status.of(desk / "parts").lines()
    assert first.endswith("part-00001-of-00002.npy  without its manifest")
    assert second.endswith("present")
    assert run(*shlex.split(command.replace(str(desk) + "/", ""))[1:], "--quiet").exit_code == 0
    assert run("merge", "parts", "-o", "x.npy", "--quiet").exit_code == 0


def test_a_part_that_is_being_written_or_was_cut_off(model, desk):
    run("embed", "-m", model, "my texts.txt", "--shard", "1/1", "-o", "parts/x.npy", "--quiet")
    part = desk / "parts" / "x.npy"
    assert Status.of(desk / "parts").lines()[1] == "1/1  x.npy  present"
    with NpyFile(part, {}):
        found = Status.of(desk / "parts").lines()
        assert found[1:] == ["1/1  x.npy  being written"]  # and no command that would be refused
    part.with_name("x.npy.partial").unlink()
    part.write_bytes(b"short")
    assert Status.of(desk / "parts").lines()[1] == "1/1  x.npy  of another size than it was made"
    part.unlink()
    assert Status.of(desk / "parts").lines()[1] == "1/1  x.npy  missing"
    assert read_manifest(manifest_path(part)).sha256 is not None


def test_a_command_of_every_option_is_the_one_that_was_typed(model, desk):
    words = ["--dim", "8", "--normalize", "--keep", "a,b", "--keep", "c", "--batch-tokens", "99", "--dedupe"]
    (desk / "x.jsonl").write_text('{"text": "t", "a": 1, "b": 2, "c": 3}\n' * 2)
    run("embed", "x.jsonl", "-m", model, *words, "--shard", "2/2", "-o", "parts/x.jsonl", "--quiet")
    line = Status.of(desk / "parts").lines()[-1]
    assert run(*shlex.split(line)[1:], "--quiet").exit_code == 0
    assert Status.of(desk / "parts").lines()[-1].startswith("Every part is there")
