"""An input while it is read: lines across reads, what a pipe makes wait for, and files that change."""

from __future__ import annotations

import gzip
import io
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError
from fastflow.files.read import inputs
from fastflow.files.read.inputs import Input


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.binary(max_size=40).map(lambda data: data.replace(b"\xef", b"e")), st.integers(1, 9))
def test_lines_do_not_depend_on_where_a_read_ends(tmp_path_factory, data, chunk):
    path = tmp_path_factory.mktemp("in") / "x.txt"
    path.write_bytes(data)
    want = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in data.removesuffix(b"\n").split(b"\n")]
    with pytest.MonkeyPatch.context() as patch, Input(str(path)) as source:
        patch.setattr(inputs, "CHUNK", chunk)
        assert list(source.lines("replace")) == (want if data else [])


def test_a_line_of_many_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "CHUNK", 7)
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"a" * 1000 + b"\n" + b"b" * 15))
    with Input(str(path)) as source:
        assert list(source.lines()) == ["a" * 1000, "b" * 15]


@pytest.fixture
def pipe(tmp_path):
    """(Input, its writing end) of a named pipe."""
    os.mkfifo(tmp_path / "fifo")
    reading = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)  # else opening would wait for the other end
    with open(tmp_path / "fifo", "wb", buffering=0) as end, Input(str(tmp_path / "fifo")) as source:
        os.close(reading)
        yield source, end


def test_a_pipe_waits_only_when_no_whole_line_has_arrived(pipe):
    source, end = pipe
    lines = source.lines()
    assert source.identity is None
    assert source.waits()
    end.write(b"one\ntwo\nthr")
    assert not source.waits()
    assert next(lines) == "one"
    assert not source.waits()  # two has been read
    assert next(lines) == "two"
    assert source.waits()
    end.write(b"ee\n")
    assert not source.waits()
    assert next(lines) == "three"
    end.close()
    assert not source.waits()  # the end is no reason to wait
    assert list(lines) == []


def test_a_file_never_waits(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one\ntwo")
    with Input(str(path)) as source:
        lines = source.lines()
        assert [source.waits(), next(lines), source.waits(), next(lines), source.waits()] == [
            False, "one", False, "two", False,
        ]  # fmt: skip
        assert source.identity == (7, path.stat().st_mtime_ns)


def test_a_change_is_found_at_the_end_and_a_rename_is_none(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one\ntwo\n")
    with Input(str(path)) as source:
        path.rename(tmp_path / "y.txt")
        path.write_text("another")
        assert list(source.lines()) == ["one", "two"]
    with Input(str(path)) as source:
        lines = source.lines()
        os.utime(path, ns=(0, 0))
        assert next(lines) == "another"
        with pytest.raises(FastflowError, match=r"x\.txt was changed while it was read; run the command again"):
            next(lines)


def test_a_name_that_no_file_can_have(tmp_path):
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(FastflowError, match="cannot be opened: "):
            Input(str(tmp_path / name))


def test_the_share_of_a_file_grows_to_one(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a line of text\n" * 20_000)
    packed = tmp_path / "in.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with Input(str(path)) as source:
        shares = [source.share() for _ in source.lines()]
    assert shares == sorted(shares)
    assert shares[0] < 0.3 < 0.4 < shares[len(shares) // 2] < 0.8
    assert shares[-1] == 1
    with Input(str(packed)) as source:
        assert list(source.lines())
        assert source.share() == 1


def test_a_pipe_and_an_empty_file_have_no_share(tmp_path, monkeypatch):
    (tmp_path / "empty.txt").write_text("")
    with Input(str(tmp_path / "empty.txt")) as source:
        assert source.share() is None
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    with Input("-") as source:
        assert list(source.lines()) == ["a", "b"]
        assert source.share() is None
