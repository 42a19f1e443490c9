"""Parts and their manifests: names, what is recorded, what cannot be joined, and a part that is finished already."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.files.parts.manifest import (
    check_bytes,
    file_sha256,
    make_folder,
    manifest_path,
    manifests,
    part_name,
    part_path,
    read_manifest,
)

from support.commands import assert_one_sentence, run
from support.refusals import refuses, spoil


@pytest.fixture
def desk(tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("".join(text + "\n" for text in sentences[:50]))
    return tmp_path


def make(model, shard, *options, out="parts", source="in.txt"):
    result = run("embed", source, "-m", model, "--shard", shard, "-o", out, *options)
    assert result.exit_code == 0, result.stderr
    return result.stderr


def test_names_sort_as_the_parts_do(tmp_path):
    names = [part_name((i, 123_456), ".npy") for i in (1, 2, 10, 123_456)]
    assert names == sorted(names)
    assert part_name((3, 16), ".parquet") == "part-00003-of-00016.parquet"
    assert part_path(tmp_path / "new" / "parts", (1, 2)) == tmp_path / "new" / "parts" / "part-00001-of-00002.npy"
    assert part_path(tmp_path / "mine.jsonl", (1, 2)) == tmp_path / "mine.jsonl"
    (tmp_path / "parts.v1").mkdir()
    assert part_path(tmp_path / "parts.v1", (1, 2)).parent == tmp_path / "parts.v1"


def test_the_folder_of_a_part_is_made(tmp_path):
    make_folder(tmp_path / "new" / "parts" / "x.npy")
    assert (tmp_path / "new" / "parts").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(FastflowError, match="cannot be written: File exists"):
        make_folder(tmp_path / "file" / "x.npy")


def test_the_manifest_names_rows_inputs_model_options_and_hash(model, desk):
    said = make(model, "2/3", "--precision", "int8", "--no-normalize", "--prompt", "so it's ")
    part = desk / "parts" / "part-00002-of-00003.npy"
    manifest = read_manifest(manifest_path(part))
    assert "fastflow: part 2 of 3, rows 16 to 32 of 50\n" in said
    assert (manifest.part, manifest.shard, manifest.rows, manifest.total) == (part.name, (2, 3), (16, 33), 50)
    size = (desk / "in.txt").stat().st_size
    assert manifest.inputs == [{"name": "in.txt", "rows": 50, "size": size, "sha256": file_sha256(desk / "in.txt")}]
    assert manifest.run["options"]["prompt"] == "so it's "
    assert (manifest.bytes, manifest.sha256) == (part.stat().st_size, file_sha256(part))
    words = ["in.txt", "--model", str(model), "--precision", "int8", "--no-normalize", "--prompt", "so it's "]
    assert sorted(manifest.arguments) == sorted(words)
    assert len(np.load(part)) == 17


def test_a_finished_part_is_left_as_it_is(model, desk):
    make(model, "1/2")
    part = desk / "parts" / "part-00001-of-00002.npy"
    before = part.stat().st_mtime_ns
    assert f"fastflow: {part.relative_to(desk)} is finished: nothing to do\n" in make(model, "1/2", "--resume")
    assert part.stat().st_mtime_ns == before
    again = ["embed", "in.txt", "-m", model, "--shard", "1/2", "-o", "parts", "--resume", "--quiet"]
    another = "are of two sets of options: "
    assert_one_sentence(run(*again, "--normalize"), 1, another + "normalized is False, and True")
    assert_one_sentence(run(*again, "--prompt", "x"), 1, another + "prompt is None, and 'x'")
    (desk / "in.txt").write_text("another\n")
    changed = "00001-of-00002.npy and this run are of two versions of in.txt; choose another -o"
    assert_one_sentence(run(*again), 1, changed)
    part.write_bytes(part.read_bytes()[:-1])
    assert "1 text (" in make(model, "1/1", "--resume", out="other")


def test_a_file_of_a_run_without_shards_is_not_taken_for_a_part(model, desk):
    run("embed", "in.txt", "-m", model, "-o", "out.npy", "--quiet")
    result = run("embed", "in.txt", "-m", model, "--shard", "1/2", "-o", "out.npy", "--resume", "--quiet")
    assert_one_sentence(result, 2, "out.npy is finished, and no part: it has no out.npy.shard.json; leave out --resume")


@pytest.mark.parametrize(
    ("shard", "which", "options", "source", "sentence"),
    [
        ("2/2", "model", ["--normalize"], "in.txt", "two sets of options: normalized is True, and False"),
        ("2/2", "bert", [], "in.txt", "two models"),
        ("2/3", "model", [], "in.txt", "3 parts, and of 2"),
        ("2/2", "model", [], "other.txt", "two inputs, other.txt and in.txt"),
    ],
)
def test_parts_that_cannot_be_joined_are_named(model, bert, desk, shard, which, options, source, sentence):
    """Before such a part is made where the others are, and again where it was put."""
    make(model, "1/2")
    (desk / "other.txt").write_text("a\nb\n")
    given = ["embed", source, "-m", model if which == "model" else bert, "--shard", shard, "--quiet", *options, "-o"]
    refused = run(*given, "parts/x.npy")
    both = f"x.npy and parts/part-00001-of-00002.npy are of {sentence}; give each run a folder of its own, or remove"
    assert_one_sentence(refused, 1, both)
    assert refused.stderr.endswith(", each with its .shard.json\n")
    assert not (desk / "parts" / "x.npy").exists()
    assert run(*given, "elsewhere/x.npy").exit_code == 0
    shutil.copytree(desk / "elsewhere", desk / "parts", dirs_exist_ok=True)
    refuses(manifests, desk / "parts", f"{sentence}; …remove the others, each with its .shard.json")


def test_two_parts_of_one_number_are_named(model, desk):
    make(model, "1/2")
    make(model, "1/2", out="parts/x.npy")
    refuses(manifests, desk / "parts", "are both part 1; remove one of them and its .shard.json")


def test_equal_content_under_another_name_is_one_input(model, desk):
    make(model, "1/2")
    (desk / "copy.txt").write_bytes((desk / "in.txt").read_bytes())
    make(model, "2/2", source="copy.txt")
    assert [manifest.shard for manifest in manifests(desk / "parts")] == [(1, 2), (2, 2)]


DAMAGED = [  # new fields of a manifest, sentence
    ({"fastflow_shard": 2}, "is of version 2 of the manifest, and this fastflow reads 1; update"),
    ({"fastflow_shard": [1]}, "is of version [1] of the manifest"),
    ({"rows": [0, 26]}, "field rows: [0, 26] of 50 are not those of part 1 of 2; remove it"),
    ({"rows": [0, 25, 25]}, "field rows: [0, 25, 25]; remove it"),
    ({"shard": [1, True]}, "field shard: [1, True]; remove it"),
    ({"shard": [1, 10**12]}, "field shard: [1, 1000000000000]; remove it"),
    ({"shard": [0, 2]}, "field rows: "),
    ({"part": "../x.npy"}, "field part: '../x.npy'; remove it"),
    ({"part": ".."}, "field part: '..'; remove it"),
    ({"part": 7}, "field part: 7; remove it"),
    ({"total": -1}, "field total: -1; remove it"),
    ({"total": "50"}, "field total: '50'; remove it"),
    ({"inputs": {}}, "field inputs: {}; remove it"),
    (lambda m: m["inputs"][0].update(rows=None), "field inputs: …; remove it"),
    (lambda m: m["inputs"][0].update(name=1), "field inputs: …; remove it"),
    (lambda m: m["inputs"][0].update(rows=49), "field total: 50 rows are not those of the inputs"),
    (lambda m: m["run"].update(options=3), "field run: …; remove it"),
    (lambda m: m["run"].update(options={"layout": "txt"}), "field run: …; remove it"),
    (lambda m: m["run"].update(fingerprint=[1]), "field run: …; remove it"),
    ({"arguments": "in.txt"}, "field arguments: 'in.txt'; remove it"),
    ({"arguments": [None]}, "field arguments: [None]; remove it"),
    ({"bytes": 1.5}, "field bytes: 1.5; remove it"),
    ({"bytes": None}, "field sha256: a part that is whole has bytes and sha256; remove it"),
    ({"sha256": "F" * 64}, "field sha256: 'F…'; remove it"),
    ({"more": 1}, "field 'more', which no manifest has; remove it"),
    ({"run": ...}, "field run: missing; remove it"),
    ("[{}]", "cannot be read: it does not hold a JSON object"),
    ("[" * 100_000, "cannot be read"),
]


@pytest.mark.parametrize(("fault", "sentence"), DAMAGED)
def test_manifests_that_are_damaged(model, desk, fault, sentence):
    make(model, "1/2")
    refuses(manifests, spoil(desk / "parts", "part-00001-of-00002.npy.shard.json", fault), sentence)


def test_a_run_that_fails_before_its_first_rows_leaves_no_manifest_and_an_older_one_as_it_was(model, desk):
    bad = ("embed", "in.txt", "-m", model, "--shard", "1/2", "-o", "parts", "--dim", 33, "--quiet")
    assert run(*bad).exit_code == 2
    assert list((desk / "parts").iterdir()) == []
    make(model, "1/2")
    before = {path.name: path.read_bytes() for path in (desk / "parts").iterdir()}
    assert run(*bad).exit_code == 2
    assert {path.name: path.read_bytes() for path in (desk / "parts").iterdir()} == before


def test_more_parts_than_rows_have_manifests_too(model, desk):
    (desk / "few.txt").write_text("the dog\n")
    for number in (1, 2):
        make(model, f"{number}/2", source="few.txt")
    assert [manifest.rows for manifest in manifests(desk / "parts")] == [(0, 0), (0, 1)]


def test_a_pipe_in_the_place_of_a_manifest_or_a_part_is_not_waited_for(model, desk):
    make(model, "1/2")
    part = desk / "parts" / "part-00001-of-00002.npy"
    whole = manifests(desk / "parts")
    part.unlink()
    os.mkfifo(part)
    refuses(lambda folder: check_bytes(folder, whole), desk / "parts", "00002.npy cannot be read: it is not a file")
    manifest_path(part).unlink()
    os.mkfifo(manifest_path(part))
    refuses(manifests, desk / "parts", "shard.json cannot be read: it is not a file")


def test_a_manifest_has_a_largest_size(model, desk, monkeypatch):
    make(model, "1/2")
    monkeypatch.setattr("fastflow.files.parts.manifest.LARGEST", 100)
    refuses(manifests, desk / "parts", "shard.json cannot be read: it has more than")


def test_a_link_in_the_place_of_the_temporary_name_is_not_followed(model, desk):
    precious = desk / "precious.txt"
    precious.write_text("kept")
    (desk / "parts").mkdir(exist_ok=True)
    (desk / "parts" / "part-00001-of-00002.npy.shard.json.tmp").symlink_to(precious)
    make(model, "1/2")
    assert precious.read_text() == "kept"
    assert len(manifests(desk / "parts")) == 1
