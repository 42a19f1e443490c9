"""The user's folder of cached files: listed, removed, and kept while they are in use."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow.cli import main
from fastflow.files import cached_files as cache
from fastflow.files.write.partial import open_partial
from fastflow.train.data.embeddings import embed_corpus
from fastflow.train.data.encoder import open_encoder

from support.refusals import refuses

DAYS = 86_400
KEYS = ["a" * 64, "b" * 64, "c" * 64]


def run(*arguments):
    done = CliRunner().invoke(main, ["cache", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done


def write_array(path, rows=3):
    with path.open("wb") as handle:
        np.save(handle, np.zeros((rows, 1000), np.float32))
    return path


def test_an_age_is_in_its_largest_whole_unit():
    ages = {-9: "just now", 59.9: "just now", 60: "1 minute", 3599: "59 minutes", 3600: "1 hour", DAYS: "1 day"}
    for seconds, age in ages.items():
        assert cache._age(seconds) == age


def test_the_usual_place_and_a_place_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run().stdout == f"{tmp_path / 'fastflow'}: 0 entries, 0 kB\n"
    (tmp_path / "fastflow").mkdir()
    write_array(tmp_path / "fastflow" / f"{KEYS[0]}.npy")
    assert "1 entry" in run().stdout
    assert "1 entry" in run("--clear").stderr


@pytest.fixture
def kept(bert, sentences, tmp_path):
    """A cache of one finished entry, named, and its path."""
    embed_corpus(sentences, open_encoder(str(bert), "first-last", 64), tmp_path / "kept", corpus="corpus.txt")
    (path,) = (tmp_path / "kept").glob("*.npy")
    return path


def test_an_entry_is_listed_by_what_it_is_of(kept, bert):
    lines = run(kept.parent).stdout.splitlines()
    assert lines[0] == f"{kept.parent}: 1 entry, 33 kB"
    assert lines[1].split(None, 5) == [
        kept.name[:12], "33", "kB", "just", "now", f"finished            256 texts of corpus.txt, encoder {bert}"
    ]  # fmt: skip
    assert len(lines) == 2


def test_age_size_and_state(tmp_path, monkeypatch):
    now = 1_800_000_000.0
    monkeypatch.setattr("fastflow.commands.keep.time.time", lambda: now)
    for key, days, name in zip(KEYS, (40, 1, 0.2), (".npy", ".npy.partial", ".npy.partial"), strict=True):
        path = write_array(tmp_path / (key + name), rows=3000)
        os.utime(path, (now - days * DAYS,) * 2)
    lines = [line.split(None, 1)[1] for line in run(tmp_path).stdout.splitlines()[1:]]
    assert [" ".join(line.split()) for line in lines] == [
        "12 MB 40 days finished of an unknown corpus",
        "12 MB 1 day unfinished of an unknown corpus",
        "12 MB 4 hours unfinished of an unknown corpus",
    ]
    assert run(tmp_path, "--older-than", 30).stdout.startswith(f"{tmp_path}: 1 entry, 12 MB\n")
    done = run(tmp_path, "--clear", "--older-than", 0.5)
    assert done.stderr == f"fastflow: removed 2 entries, 24 MB from {tmp_path}\n"
    assert [path.name for path in tmp_path.iterdir()] == [KEYS[2] + ".npy.partial"]
    run(tmp_path, "--clear")
    assert list(tmp_path.iterdir()) == []


def test_a_description_goes_with_the_last_entry_that_has_it_unless_it_is_of_others(kept):
    partial = write_array(Path(f"{kept}.partial"))
    cache.clear([entry for entry in cache.entries(kept.parent) if entry.path == partial])
    assert sorted(path.suffix for path in kept.parent.iterdir()) == [".json", ".npy"]
    description = kept.with_suffix(".json").read_text()
    for content, left in ((description, []), ('{"mine": 1}', [".json"])):
        write_array(kept)
        kept.with_suffix(".json").write_text(content)
        assert ("of an unknown corpus" in run(kept.parent).stdout) == bool(left)
        assert "removed 1 entry, " in run(kept.parent, "--clear").stderr
        assert [path.suffix for path in kept.parent.iterdir()] == left


FOREIGN = {
    "notes.txt": b"mine",
    "vectors.npy": cache.MAGIC + b"mine",
    KEYS[0][:-1] + ".npy": cache.MAGIC,
    KEYS[0] + ".npz": cache.MAGIC,
    KEYS[0].upper() + ".npy": cache.MAGIC,
    KEYS[0] + ".123.npy": cache.MAGIC,
    KEYS[1] + ".npy": b"no array at all",
    KEYS[1] + ".json": b'{"mine": 1}',
    KEYS[2] + ".npy.partial": b"an unfinished download of another program",
}


def test_files_of_others_are_neither_listed_nor_removed(tmp_path):
    for name, content in FOREIGN.items():
        (tmp_path / name).write_bytes(content)
    outside = write_array(tmp_path.parent / "outside.npy")
    (tmp_path / (KEYS[2] + ".npy")).symlink_to(outside)
    (tmp_path / (KEYS[0] + ".npy.partial")).mkdir()
    assert run(tmp_path).stdout == f"{tmp_path}: 0 entries, 0 kB\n"
    run(tmp_path, "--clear")
    assert len(list(tmp_path.iterdir())) == len(FOREIGN) + 2
    assert outside.exists()


def test_an_entry_in_use_is_kept(kept, bert, sentences):
    array_in_use = embed_corpus(sentences, open_encoder(str(bert), "first-last", 64), kept.parent)
    assert "finished, in use" in run(kept.parent).stdout
    done = run(kept.parent, "--clear")
    assert "removed 0 entries, 0 kB" in done.stderr
    assert "kept 1 entry, 33 kB in use by a running process" in done.stderr
    assert kept.exists()
    assert kept.with_suffix(".json").exists()
    del array_in_use
    run(kept.parent, "--clear")
    assert not kept.exists()


def test_an_unfinished_file_is_kept_while_it_is_locked(tmp_path):
    locked = tmp_path / f"{KEYS[0]}.npy.partial"
    other = write_array(tmp_path / f"{KEYS[1]}.npy.partial")
    with open_partial(locked):
        assert run(tmp_path).stdout.count("unfinished, in use") == 1
        run(tmp_path, "--clear")
        assert list(tmp_path.iterdir()) == [locked]
    assert not other.exists()
    run(tmp_path, "--clear")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_an_error_that_names_it(kept, monkeypatch):
    def refuse(self, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(kept), "unlink", refuse)
    refuses(cache.clear, cache.entries(kept.parent), ".npy cannot be removed: Permission denied")


def test_an_entry_is_its_owners_alone(kept):
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept.parent.iterdir()} == {0o600}
