"""Several inputs read as one: their order, their patterns, their names in messages, and what must not change."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import sources as module
from fastflow.files.read.records import Layout
from fastflow.files.read.sources import Sources, check_formats, expanded


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"b.txt": "b1\nb2\n", "a.txt": "a1\n", "c.txt": "", "d.txt": "d1\nd2"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_patterns_are_sorted_and_names_keep_their_place(desk):
    assert expanded(["d.txt", "[ab].txt", "-"]) == ["d.txt", "a.txt", "b.txt", "-"]
    (desk / "folder.txt").mkdir()
    assert expanded(["*.txt"]) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    (desk / "[ab].txt").write_text("a name, not a pattern\n")
    assert expanded(["[ab].txt"]) == ["[ab].txt"]
    (desk / "deep" / "er").mkdir(parents=True)
    (desk / "deep" / "er" / "x.jsonl").write_text("")
    assert expanded(["deep/**/*.jsonl"]) == ["deep/er/x.jsonl"]
    assert expanded(["absent.txt"]) == ["absent.txt"]  # opening it says that it is absent


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["*.csv"], r"\*\.csv: no file matches this pattern; name a file, or mend the pattern"),
        (["*.{gz,txt}"], r"\*\.\{gz,txt\}: no file matches this pattern; give a pattern for each name in \{\}"),
        (["a.txt", "a.txt"], r"a\.txt is given twice; name each input once"),
        (["./a.txt", "*.txt"], r"a\.txt is given by \./a\.txt and by a\.txt"),
        (["-", "-"], "- is given twice"),
    ],
)
def test_inputs_that_are_refused(desk, given, message):
    with pytest.raises(UsageError, match=message):
        expanded(given)


def test_formats_must_agree(desk):
    check_formats(["a.txt", "b.txt.gz", "c.txt.zst"], Layout())
    check_formats(["a.txt", "b.jsonl"], Layout("jsonl"))
    with pytest.raises(UsageError, match=r"a\.txt is txt and b\.jsonl is jsonl: the inputs of a run must be of one fo"):
        check_formats(["a.txt", "b.jsonl"], Layout())


def test_rows_go_on_through_the_files(desk):
    with Sources(["b.txt", "c.txt", "a.txt", "d.txt"]) as sources:
        found = [(number, path, record.texts[0], record.line) for number, path, record in sources.rows(Layout())]
    assert found == [
        (0, "b.txt", "b1", 1), (1, "b.txt", "b2", 2), (2, "a.txt", "a1", 1),
        (3, "d.txt", "d1", 1), (4, "d.txt", "d2", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("counts", [None, [2, 0, 1, 2]])
@pytest.mark.parametrize("skip", range(6))
def test_rows_can_be_skipped(desk, skip, counts):
    want = ["b1", "b2", "a1", "d1", "d2"][skip:]
    with Sources(["b.txt", "c.txt", "a.txt", "d.txt"]) as sources:
        found = list(sources.rows(Layout(), skip, counts))
    assert [row.record.texts[0] for row in found] == want
    assert [row.number for row in found] == list(range(skip, 5))


def test_files_before_the_rows_are_not_opened(desk):
    with Sources(["b.txt", "a.txt", "d.txt"]) as sources:
        (desk / "a.txt").unlink()
        assert [row.number for row in sources.rows(Layout(), 3, [2, 1, 2])] == [3, 4]


def test_the_rows_of_all_inputs_are_counted_before_a_run(desk):
    with Sources(["b.txt", "c.txt", "d.txt"]) as sources:
        assert sources.expected(Layout()) == (4, False)
        assert len(list(sources.rows(Layout()))) == 4  # the count left the first where it was
    with Sources(["c.txt"]) as sources:
        assert sources.expected(Layout()) == (0, False)


def test_a_count_that_takes_too_long_is_an_estimate_by_bytes(tmp_path, monkeypatch):
    lines = "".join(f"line {i:06} of a long file\n" for i in range(200_000))
    (tmp_path / "a.txt").write_text(lines)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(lines.encode()))
    monkeypatch.setattr(module, "COUNT_S", 0.0)
    monkeypatch.setattr(module, "CHECKED", 50_000)
    for names in (["a.txt"], ["b.txt.gz"], ["a.txt", "b.txt.gz"]):
        with Sources([str(tmp_path / name) for name in names]) as sources:
            found, about = sources.expected(Layout())
        assert about
        assert 0.5 < found / (200_000 * len(names)) < 1.5


def test_standard_input_from_a_file_is_counted_too(desk):
    code = "from fastflow.files.read.sources import Sources; from fastflow.files.read.records import Layout\n"
    code += "with Sources(['-']) as s: print(s.expected(Layout()), sum(1 for _ in s.rows(Layout())))"
    for shell, said in (("exec 0<b.txt", "(2, False) 2"), ("exec 0<b.txt; read x", "(None, True) 1")):
        words = ["bash", "-c", f'{shell}; exec "$@"', "bash", sys.executable, "-c", code]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == said


def test_a_damaged_line_ends_the_count_and_not_the_run(desk):
    (desk / "e.txt").write_bytes(b"a line\n" * 3000 + b"\xff\n" + b"a line\n" * 3000)
    with Sources(["e.txt"]) as sources:
        found, about = sources.expected(Layout())
        assert about
        assert found >= 3000
        rows = sources.rows(Layout())
        assert len([next(rows) for _ in range(3000)]) == 3000
        with pytest.raises(FastflowError, match=r"e\.txt, line 3001: byte 1 is not UTF-8"):
            next(rows)


def test_identity_is_that_of_every_file(desk):
    with Sources(["b.txt", "a.txt"]) as sources:
        assert sources.identity == [(6, os.stat("b.txt").st_mtime_ns), (3, os.stat("a.txt").st_mtime_ns)]
        assert sources.name == "b.txt and 1 more input"
    os.mkfifo(desk / "pipe.txt")
    with Sources(["b.txt", "pipe.txt"]) as sources:
        assert sources.identity is None
        assert sources.expected(Layout()) == (None, True)


def test_a_later_file_that_changes_before_its_turn_is_an_error(desk):
    with Sources(["b.txt", "a.txt"]) as sources:
        (desk / "a.txt").write_text("another\n")
        with pytest.raises(FastflowError, match=r"^a\.txt was changed while it was read"):
            list(sources.rows(Layout()))


def test_a_later_file_that_is_absent_is_said_before_anything_is_read(desk):
    with pytest.raises(FastflowError, match=r"^absent\.txt cannot be opened: No such file"):
        Sources(["b.txt", "absent.txt"])
