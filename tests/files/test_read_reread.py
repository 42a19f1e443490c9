"""Inputs that are read twice: files as they are, pipes by way of a copy."""

from __future__ import annotations

import gzip
import io
import os
import threading

import pytest

from fastflow.errors import FastflowError
from fastflow.files.read import reread as spool
from fastflow.files.read.reread import Rereadable


def lines(opened, path):
    with opened(path) as source:
        return list(source.lines())


@pytest.fixture
def stdin(monkeypatch):
    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def test_a_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "in.txt.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with Rereadable(str(path)) as opened:
        assert lines(opened, str(path)) == lines(opened, str(path)) == ["a", "b"]
        with opened(str(path)) as source:
            assert source.identity is not None


def test_standard_input_is_read_twice_and_its_copy_removed(stdin, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stdin(b"a\nb\n" * 100_000)
    with Rereadable("-") as opened:
        assert lines(opened, "-") == lines(opened, "-") == ["a", "b"] * 100_000
        with opened("-") as source:
            assert (source.identity, source.path, source.waits()) == (None, "-", False)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_so_is_a_named_pipe_compressed_or_not(tmp_path):
    path = tmp_path / "pipe.gz"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(gzip.compress(b"a\nb\n")))
    writer.start()
    with Rereadable(str(path)) as opened:
        assert lines(opened, str(path)) == lines(opened, str(path)) == ["a", "b"]
    writer.join()


def test_a_pipe_that_is_too_large_is_one_sentence(stdin, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(spool, "LIMIT", 1 << 20)
    stdin(b"a\n" * (1 << 19))
    with Rereadable("-"):
        pass
    stdin(b"a\n" * (1 << 19) + b"b")
    message = r"^- has more than 1 MB, and --fit reads its texts twice: .*write it to a file"
    with pytest.raises(FastflowError, match=message):
        Rereadable("-").__enter__()
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_changed_between_is_an_error(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a\n")
    with Rereadable(str(path)) as opened:
        assert lines(opened, str(path)) == ["a"]
        path.write_text("a\nb\n")
        with pytest.raises(FastflowError, match=r"in\.txt was changed while it was read"):
            opened(str(path))


def test_no_file(tmp_path):
    with pytest.raises(FastflowError, match="cannot be opened: No such file"):
        Rereadable(str(tmp_path / "none.txt")).__enter__()
