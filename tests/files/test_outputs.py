"""Output files: each is read back by the library its format belongs to, and none is left half-written."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open

from fastflow.errors import FastflowError, UsageError
from fastflow.files.outputs import (
    JsonLinesFile,
    NpyFile,
    NpzFile,
    SafetensorsFile,
    npy_header,
    writer_for,
)
from fastflow.files.partial import partial_path
from fastflow.files.printing import Block, StandardOutput, Terminal, json_lines

META = {"fingerprint": "f" * 64, "precision": "float32", "normalized": False}
DTYPES = ("float32", "float64", "float16", "int8", "uint8")
SUFFIXES = (".npy", ".npz", ".jsonl", ".safetensors")


def block(vectors: np.ndarray, start: int = 0, ids: bool = False) -> Block:
    rows = list(range(start, start + len(vectors)))
    return Block(rows, [f"text {i}" for i in rows], [f"id-{i}" for i in rows] if ids else None, vectors)


def vectors_of(dtype: str, rows: int = 7, width: int = 5) -> np.ndarray:
    values = np.random.default_rng(0).normal(0, 20, (rows, width))
    return (np.abs(values) if dtype == "uint8" else values).astype(dtype)


def write(path: Path, vectors: np.ndarray, cut: int = 3, **options: bool) -> Path:
    with writer_for(path)(path, META) as writer:
        writer.begin()
        writer.write(block(vectors[:0]))
        writer.write(block(vectors[:cut], **options))
        writer.write(block(vectors[cut:], cut, **options))
        assert not path.exists()
        assert partial_path(path).exists()
        writer.finish()
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name]
    return path


def read_json_lines(data: str, dtype: str) -> np.ndarray:
    return np.array([json.loads(line)["embedding"] for line in data.splitlines()], dtype)


@settings(deadline=None, derandomize=True)
@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_nine_digits_give_float32_back_exactly(vectors):
    assert np.array_equal(read_json_lines(json_lines(block(vectors)), "float32"), vectors)


def test_json_lines_hold_index_id_text_and_numbers():
    odd = 'quote " backslash \\ tab \t é \u2028 \U0001f600 \x00'
    lines = json_lines(Block([4, 6], [odd, ""], ["k", 7], np.array([[1.5, -0.25], [0, 3e-9]], np.float32)))
    first, second = (json.loads(line) for line in lines.removesuffix("\n").split("\n"))
    assert first == {"index": 4, "id": "k", "text": odd, "embedding": [1.5, -0.25]}
    assert second == {"index": 6, "id": 7, "text": "", "embedding": [0, 3.00000003e-09]}
    assert json.loads(json_lines(Block([4], ["a"], None, np.zeros((1, 1))))) == {
        "index": 4,
        "text": "a",
        "embedding": [0],
    }
    assert lines.startswith('{"index": 4, "id": "k", "text": ')


@pytest.mark.parametrize("dtype", DTYPES)
def test_npy(tmp_path, dtype):
    vectors = vectors_of(dtype)
    found = np.load(write(tmp_path / "x.npy", vectors), allow_pickle=False)
    assert found.dtype == dtype
    assert np.array_equal(found, vectors)
    assert np.load(tmp_path / "x.npy", mmap_mode="r").shape == vectors.shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_npz(tmp_path, dtype):
    vectors = vectors_of(dtype)
    with np.load(write(tmp_path / "x.npz", vectors, ids=True), allow_pickle=False) as found:
        assert sorted(found.files) == ["embeddings", "ids", "index", "meta"]
        assert found["embeddings"].dtype == dtype
        assert np.array_equal(found["embeddings"], vectors)
        assert found["index"].tolist() == list(range(7))
        assert found["ids"].tolist() == [f"id-{i}" for i in range(7)]
        assert json.loads(str(found["meta"])) == META
    with zipfile.ZipFile(tmp_path / "x.npz") as bundle:  # no clock: equal runs give equal bytes
        assert {entry.date_time for entry in bundle.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors(tmp_path, dtype):
    vectors = vectors_of(dtype)
    with safe_open(write(tmp_path / "x.safetensors", vectors), "numpy") as found:
        assert list(found.keys()) == ["embeddings"]
        assert found.metadata() == {name: str(value) for name, value in META.items()}
        tensor = found.get_tensor("embeddings")
    assert tensor.dtype == dtype
    assert np.array_equal(tensor, vectors)


def test_safetensors_metadata_too_long_for_the_header_is_left_out(tmp_path):
    with SafetensorsFile(tmp_path / "x.safetensors", {"prompt": "x" * 4000}) as writer:
        writer.begin()
        writer.write(block(vectors_of("float32")))
        writer.finish()
    with safe_open(tmp_path / "x.safetensors", "numpy") as found:
        assert found.metadata() is None
        assert found.get_tensor("embeddings").shape == (7, 5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_jsonl(tmp_path, dtype):
    vectors = vectors_of(dtype)
    data = write(tmp_path / "x.jsonl", vectors).read_text(encoding="utf-8")
    assert np.array_equal(read_json_lines(data, dtype), vectors)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_rows_still_give_a_file_of_the_right_width(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", vectors_of("float16")[:0])
    if suffix == ".npy":
        assert np.load(path).shape == (0, 5)
        assert np.load(path).dtype == np.float16
    elif suffix == ".npz":
        with np.load(path) as found:
            assert (found["embeddings"].shape, found["index"].shape) == ((0, 5), (0,))
    elif suffix == ".safetensors":
        with safe_open(path, "numpy") as found:
            assert found.get_tensor("embeddings").shape == (0, 5)
    else:
        assert path.read_bytes() == b""


@pytest.mark.parametrize("shape", [(0, 1), (10**12, 768), (3, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_npy_header_has_a_fixed_size(shape, dtype):
    header = npy_header(shape, np.dtype(dtype), 128)
    assert len(header) == 128
    stream = io.BytesIO(header)
    assert np.lib.format.read_magic(stream) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream) == (shape, False, np.dtype(dtype))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_resuming_gives_the_bytes_of_an_uninterrupted_run(tmp_path, suffix):
    vectors = vectors_of("float32", rows=9)
    whole = write(tmp_path / f"whole{suffix}", vectors, ids=True).read_bytes()
    path = tmp_path / f"x{suffix}"
    kind = writer_for(path)
    with kind(path, META) as first:
        first.begin()
        first.write(block(vectors[:4], ids=True))
        position = first.sync()
        first.write(block(vectors[4:6], 4, ids=True))  # written, but the run died before it could say so
    with kind(path, META) as second:
        second.begin(position)
        second.skip([0, 1], ["id-0", "id-1"])
        second.skip([2, 3], ["id-2", "id-3"])
        second.write(block(vectors[:0]))
        second.write(block(vectors[4:], 4, ids=True))
        second.finish()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_removed_file_leaves_nothing(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"the file of an earlier run")
    with writer_for(path)(path, META) as writer:
        writer.begin()
        writer.write(block(vectors_of("float32")))
        writer.remove()
    assert path.read_bytes() == b"the file of an earlier run"
    assert list(tmp_path.iterdir()) == [path]


def test_the_suffix_decides():
    kinds = [writer_for(Path(f"x{suffix}")) for suffix in SUFFIXES]
    assert kinds == [NpyFile, NpzFile, JsonLinesFile, SafetensorsFile]
    for name in ("x.parquet", "x", "x.npy.gz", "x.NPY"):
        with pytest.raises(UsageError, match=r"unknown suffix .* \.npy, \.npz, \.jsonl, \.safetensors"):
            writer_for(Path(name))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_folder_that_is_not_there(tmp_path, suffix):
    path = tmp_path / "absent" / f"x{suffix}"
    with pytest.raises(
        FastflowError, match=r"cannot be written: No such file or directory; make the folder .*absent or"
    ):
        writer_for(path)(path, META)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_target_that_became_a_folder(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    with writer_for(path)(path, META) as writer:
        writer.begin()
        writer.write(block(vectors_of("float32")))
        path.mkdir()
        with pytest.raises(FastflowError, match="cannot be written: Is a directory"):
            writer.finish()
        writer.remove()
    assert list(tmp_path.iterdir()) == [path]


def test_standard_output_is_utf8_whatever_the_locale(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    StandardOutput().write(Block([0], ["é\u4e2d"], None, np.array([[math.pi]], np.float32)))
    assert json.loads(raw.getvalue().decode("utf-8")) == {"index": 0, "text": "é\u4e2d", "embedding": [3.14159274]}


def test_a_terminal_gets_a_short_line_a_row(monkeypatch, capsys):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    vectors = np.linspace(-9, 9, 3 * 256, dtype=np.float32).reshape(3, 256)
    out = Terminal()
    out.write(Block([0, 1, 2], ["short", "long " * 40, "tab\tbell\x07"], None, vectors))
    out.finish()
    lines = raw.getvalue().decode().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[:2] for line in lines] == [["0", "short"], ["1", "long"], ["2", "tab"]]
    assert "[ -9.00  -8.98  -8.95 … 256 numbers]" in lines[0]
    assert "\x07" not in lines[2]
    assert "-o FILE, or a pipe, gets whole vectors" in capsys.readouterr().err


@pytest.mark.parametrize("closed_by", ["finished", "killed"])
def test_a_lock_ends_with_its_run(tmp_path, closed_by):
    path = tmp_path / "x.npy"
    with NpyFile(path, META) as first:
        first.begin()
        first.write(block(vectors_of("float32")))
        with pytest.raises(FastflowError, match="is being written by another run"):
            NpyFile(path, META)
        if closed_by == "finished":
            first.finish()
    with NpyFile(path, META) as second:
        second.begin()
        second.write(block(vectors_of("float32")))
        second.finish()
    assert np.load(path).shape == (7, 5)


def test_a_partial_that_is_renamed_between_opening_and_locking_is_opened_again(tmp_path, monkeypatch):
    """Or the second run would write into the finished file of the first."""
    path = tmp_path / "x.npy"
    write(path, vectors_of("float32"))
    whole = path.read_bytes()
    path.rename(partial_path(path))
    lock, renamed = fcntl.flock, []

    def slow(handle, operation):
        if not renamed:
            renamed.append(partial_path(path).rename(path))
        lock(handle, operation)

    monkeypatch.setattr("fcntl.flock", slow)
    with NpyFile(path, META) as writer:
        writer.begin()
        assert path.read_bytes() == whole
        assert partial_path(path).exists()


def test_a_partial_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    partial_path(tmp_path / "x.npy").symlink_to(tmp_path / "precious")
    with pytest.raises(FastflowError, match=r"x\.npy\.partial cannot be written: Too many levels of symbolic links"):
        NpyFile(tmp_path / "x.npy", META)
    assert (tmp_path / "precious").read_text() == "kept"
