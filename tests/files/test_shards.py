"""Parts of a run: counting, manifests, status."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fastflow.files import embed as module
from fastflow.files.read import InputFormat
from fastflow.files.read.inputs import Input
from fastflow.files.read.sources import Sources
from fastflow.files.read.texts import read_records
from fastflow.files.shards.manifest import (
    Counted,
    check_bytes,
    count_rows,
    find_wrong_field,
    make_folder,
    manifest_of,
    manifest_path,
    manifests,
    part_name,
    part_path,
    read_manifest,
    span,
    split_rows,
)
from fastflow.files.shards.merging import Status
from fastflow.files.write.outputs import NpyFile
from fastflow.model.hashing import file_hash

from support.commands import assert_one_sentence, run
from support.refusals import refuses, spoil
from support.runs import stopped_at

MANY = [f"line {i} of a file" for i in range(20_000)]
CONTENTS = [  # a file and its texts
    ("x.txt", b"", []), ("x.txt", b"\n", [""]), ("x.txt", b"a", ["a"]), ("x.txt", b"a\n\nb", ["a", "", "b"]),
    ("x.txt", b"a\r\nb\n\n", ["a", "b", ""]), ("x.txt", "\n".join(MANY).encode(), MANY),
    ("x.jsonl", b"", []), ("x.jsonl", b'"a"\n"b"\n\n \n', ["a", "b"]), ("x.jsonl", b'"a"\n{"text": "b"}', ["a", "b"]),
    ("x.csv", b"", []), ("x.csv", b"text,n\n", []), ("x.csv", b'text,n\n"a\nb",1\nc,2\n\n', ["a\nb", "c"]),
    ("x.tsv", b"text\tn\na\t1\nb\t2", ["a", "b"]), ("x.tsv", b"text\tn\na\t1\nb\t2\n\n\n", ["a", "b"]),
]  # fmt: skip


def count(path, layout=InputFormat()):  # noqa: B008 (immutable)
    with Input(str(path)) as source:
        return count_rows(source, layout)


@pytest.mark.parametrize(("name", "data", "texts"), CONTENTS)
def test_texts_and_their_count_are_those_of_the_plain_file_however_it_is_packed(tmp_path, name, data, texts):
    gz, zst = gzip.compress, zstandard.compress
    halves = data[: len(data) // 2], data[len(data) // 2 :]  # two members or frames, one after the other
    forms = {"": data, ".gz": gz(data), ".zst": zst(data)}
    forms |= {"2.gz": b"".join(map(gz, halves)), "2.zst": b"".join(map(zst, halves))}
    for suffix, content in forms.items():
        path = tmp_path / f"{suffix[:1]}{name}{suffix.removeprefix('2')}"
        path.write_bytes(content)
        assert [record.texts for record in read_records(str(path))] == [(text,) for text in texts]
        found = count(path)
        assert (found.rows, found.sha256) == (len(texts), hashlib.sha256(data).hexdigest())
        assert suffix or found.size == len(data)


def test_nul_footers_and_faults_are_counted(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\nb\0c\0d")
    assert count(tmp_path / "x.txt", InputFormat(null=True)).rows == 3
    (tmp_path / "x.txt").write_bytes(b"a\n\xff\n")
    assert count(tmp_path / "x.txt").rows == 2  # a row that cannot be used has a number too
    for name in "ab":
        pq.write_table(pa.table({"text": [name] * 100}), tmp_path / f"{name}.parquet", row_group_size=7)
    one, other = count(tmp_path / "a.parquet"), count(tmp_path / "b.parquet")
    assert one.rows == other.rows == 100
    assert one.sha256 != other.sha256  # the statistics of its columns are in it


def test_spans_cover_every_row_once_and_evenly():
    for rows in (0, 1, 2, 10, 101):
        for of in (1, 2, 3, 7, 200):
            spans = [span(rows, (number, of)) for number in range(1, of + 1)]
            assert [row for start, stop in spans for row in range(start, stop)] == list(range(rows))
            assert {stop - start for start, stop in spans} <= {rows // of, -(-rows // of)}


def test_a_split_is_over_all_inputs_which_can_be_read_again(tmp_path):
    paths = []
    for name, count_ in (("a", 5), ("b", 0), ("c", 6)):
        paths.append(str(tmp_path / f"{name}.jsonl"))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(f"{name}{i}") + "\n" for i in range(count_)))
    with Sources(paths) as sources:
        split = split_rows(sources, InputFormat(), (2, 3))
        assert (split.counts, split.start, split.stop) == ([5, 0, 6], 3, 7)
        assert [row.record.texts[0] for row in sources.rows(InputFormat())][3:7] == ["a3", "a4", "c0", "c1"]


HASH = "0123456789abcdef" * 4
SOUND = json.loads(
    json.dumps(
        asdict(
            manifest_of(
                Path("part-00002-of-00003.npy"), (2, 3), ["in.txt", "b.txt"],
                [Counted(7, 90, HASH), Counted(3, 9, HASH)],
                {"fingerprint": "f", "normalized": True, "options": {"dim": None, "layout": {"field": None}}},
                ["in.txt"],
            )
        )
    )
)  # fmt: skip


def test_a_manifest_that_was_made_is_sound_and_a_missing_field_is_named():
    assert find_wrong_field(dict(SOUND)) is None
    assert find_wrong_field(SOUND | {"bytes": 7, "sha256": HASH}) is None
    for name in SOUND:
        assert find_wrong_field({key: value for key, value in SOUND.items() if key != name}) == f"{name}: missing"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
JSON = st.recursive(
    LEAVES, lambda it: st.lists(it, max_size=3) | st.dictionaries(st.text(max_size=5), it, max_size=3), max_leaves=6
)


@pytest.mark.slow
@given(st.sampled_from(sorted(SOUND)), JSON)
def test_any_value_is_sound_or_named(name, value):
    said = find_wrong_field(SOUND | {name: value})
    assert value == SOUND[name] or said is not None or name in ("run", "arguments", "part", "skipped")
    assert said is None or isinstance(said, str)


@pytest.fixture
def desk(tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "WINDOW", 16)
    for name, rows in {"my texts": 200, "in": 50}.items():
        (tmp_path / f"{name}.txt").write_text("".join(text + "\n" for text in sentences[:rows]))
    return tmp_path


def make(model, shard, *options, out="parts", source="in.txt"):
    result = run("embed", source, "-m", model, "--shard", shard, "-o", out, *options)
    assert result.exit_code == 0, result.stderr
    return result.stderr


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
    make(model, "1/1", out="parts/x.npy")
    part = desk / "parts" / "x.npy"

    def states():
        return [line.removeprefix("1/1  x.npy  ") for line in Status.of(desk / "parts").lines()[1:]]

    assert states()[0] == "present"
    with NpyFile(part, {}):
        assert states() == ["being written"]  # and no command that would be refused
    part.with_name("x.npy.partial").unlink()
    part.write_bytes(b"short")
    assert states()[0] == "of another size than it was made"
    part.unlink()
    assert states()[0] == "missing"
    assert read_manifest(manifest_path(part)).sha256 is not None


def test_a_command_of_every_option_is_the_one_that_was_typed(model, desk):
    words = ["--dim", "8", "--normalize", "--keep", "a,b", "--keep", "c", "--batch-tokens", "99", "--dedupe"]
    (desk / "x.jsonl").write_text('{"text": "t", "a": 1, "b": 2, "c": 3}\n' * 2)
    run("embed", "x.jsonl", "-m", model, *words, "--shard", "2/2", "-o", "parts/x.jsonl", "--quiet")
    line = Status.of(desk / "parts").lines()[-1]
    assert run(*shlex.split(line)[1:], "--quiet").exit_code == 0
    assert Status.of(desk / "parts").lines()[-1].startswith("Every part is there")


def test_names_sort_as_the_parts_do(tmp_path):
    names = [part_name((i, 123_456), ".npy") for i in (1, 2, 10, 123_456)]
    assert names == sorted(names)
    assert part_name((3, 16), ".parquet") == "part-00003-of-00016.parquet"
    assert part_path(tmp_path / "new" / "parts", (1, 2)) == tmp_path / "new" / "parts" / "part-00001-of-00002.npy"
    assert part_path(tmp_path / "mine.jsonl", (1, 2)) == tmp_path / "mine.jsonl"
    (tmp_path / "parts.v1").mkdir()
    assert part_path(tmp_path / "parts.v1", (1, 2)).parent == tmp_path / "parts.v1"
    make_folder(tmp_path / "new" / "parts" / "x.npy")
    assert (tmp_path / "new" / "parts").is_dir()
    (tmp_path / "file").write_text("")
    refuses(make_folder, tmp_path / "file" / "x.npy", "cannot be written: File exists")


def test_the_manifest_names_rows_inputs_model_options_and_hash(model, desk):
    said = make(model, "2/3", "--precision", "int8", "--no-normalize", "--prompt", "so it's ")
    part = desk / "parts" / "part-00002-of-00003.npy"
    manifest = read_manifest(manifest_path(part))
    assert "fastflow: part 2 of 3, rows 16 to 32 of 50\n" in said
    assert (manifest.part, manifest.shard, manifest.rows, manifest.total) == (part.name, (2, 3), (16, 33), 50)
    size = (desk / "in.txt").stat().st_size
    assert manifest.inputs == [{"name": "in.txt", "rows": 50, "size": size, "sha256": file_hash(desk / "in.txt")}]
    assert manifest.run["options"]["prompt"] == "so it's "
    assert (manifest.bytes, manifest.sha256) == (part.stat().st_size, file_hash(part))
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


def test_a_number_twice_is_named_and_parts_may_differ_in_names_of_inputs_and_in_what_they_refuse(model, desk):
    make(model, "1/2", "--truncate", "error")
    (desk / "copy.txt").write_bytes((desk / "in.txt").read_bytes())
    make(model, "2/2", "--errors", "replace", source="copy.txt")
    assert [manifest.shard for manifest in manifests(desk / "parts")] == [(1, 2), (2, 2)]
    make(model, "1/2", out="parts/x.npy")
    refuses(manifests, desk / "parts", "are both part 1; remove one of them and its .shard.json")


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
    (lambda m: m["run"].update(options="txt"), "field run: …; remove it"),
    (lambda m: m["run"].update(fingerprint=[1]), "field run: …; remove it"),
    ({"arguments": "in.txt"}, "field arguments: 'in.txt'; remove it"),
    ({"arguments": [None]}, "field arguments: [None]; remove it"),
    ({"bytes": 1.5}, "field bytes: 1.5; remove it"),
    ({"bytes": None}, "field sha256: a part that is whole has bytes and sha256; remove it"),
    ({"sha256": "F" * 64}, "field sha256: 'F…'; remove it"),
    ({"skipped": 99}, "skipped: 99 rows are more than the part has; remove it"),
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


def test_a_pipe_in_the_place_of_a_manifest_or_a_part_is_not_waited_for(model, desk, monkeypatch):
    make(model, "1/2")
    part = desk / "parts" / "part-00001-of-00002.npy"
    whole = manifests(desk / "parts")
    with monkeypatch.context() as patch:
        patch.setattr("fastflow.files.shards.manifest.LARGEST", 100)
        refuses(manifests, desk / "parts", "shard.json cannot be read: it has more than")
    part.unlink()
    os.mkfifo(part)
    refuses(lambda folder: check_bytes(folder, whole), desk / "parts", "00002.npy cannot be read: it is not a file")
    manifest_path(part).unlink()
    os.mkfifo(manifest_path(part))
    refuses(manifests, desk / "parts", "shard.json cannot be read: it is not a file")
