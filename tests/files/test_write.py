"""The contract of every format: what is written is read back bit for bit, and a file is whole when it has its name."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fastflow import atomic
from fastflow.errors import FastflowError, UsageError
from fastflow.files.database import DatabaseFile
from fastflow.files.write import Block, StandardOutput, Terminal, json_lines, partial
from fastflow.files.write.outputs import WRITERS, CsvFile, JsonLinesFile, NpyFile, writer_for
from fastflow.files.write.parquet import ParquetOutput
from fastflow.files.write.partial import check_known, partial_path, state_path

from support.databases import read
from support.outputs import block, vectors_of
from support.written import read_back

ODD = ["", 'quote " backslash \\ tab \t', "two\nlines\r\n", "é \u4e2d \U0001f600", "\u2028\x00\x07", "007", "null", " "]
COLUMNS = {
    "id": ["k1", "", "7", "ü", "null", "k 6", "\U0001f600", "k8"],
    "title": ODD[::-1],
    "may": ["null", None, "", "ü", None, "a", "b", None],
    "n": [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), None, 7, 8],
    "x": [0.1, 1e-300, 2.0, 5e-324, 1.7976931348623157e308, 1e22, -2.5, 0.5],
}
META = {"fingerprint": "f" * 64, "normalized": False}
DTYPES = ("float32", "float16", "int8", "uint8")
each_format = pytest.mark.parametrize("suffix", WRITERS)


def rows(dtype: str) -> np.ndarray:
    vectors = vectors_of(dtype, rows=8)
    limits = np.finfo(dtype) if vectors.dtype.kind == "f" else np.iinfo(dtype)
    vectors[0, :2] = limits.min, limits.max
    if vectors.dtype.kind == "f":
        vectors[1, :3] = -0.0, limits.smallest_subnormal, limits.eps
    return vectors


def write(path: Path, vectors: np.ndarray, cuts: tuple[int, ...] = (3,)) -> Path:
    """Everything that the format has a place for, in blocks that end at ``cuts``."""
    kind = writer_for(path)
    with kind(path, META) as writer:
        writer.begin()
        for start, stop in zip((0, 0, *cuts), (0, *cuts, len(vectors)), strict=True):
            at = slice(start, stop)
            ids = {"id": COLUMNS["id"][at]} if kind.keeps_fields else {}
            kept = {name: COLUMNS[name][at] for name in ("title", "may", "n", "x") if kind.keeps_fields}
            writer.write(Block(range(len(vectors))[at], ODD[at], vectors[at], ids, kept))
        assert not path.exists()
        writer.finish()
    assert list(path.parent.iterdir()) == [path]
    return path


@each_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_everything_is_read_back_bit_for_bit(tmp_path, suffix, dtype):
    vectors = rows(dtype)
    found, columns = read_back(write(tmp_path / f"x{suffix}", vectors))
    if suffix in (".jsonl", ".csv"):  # numbers of JSON have no dtype, and no zero below zero
        assert np.array_equal(found.astype(dtype), vectors)
    else:
        assert (found.tobytes(), found.dtype) == (vectors.tobytes(), dtype)
    kind = writer_for(Path(f"x{suffix}"))
    want = dict(COLUMNS) if kind.keeps_fields else {}
    want |= {"index": list(range(8))} if kind.keeps_fields else {}
    want |= {"text": ODD} if suffix in (".jsonl", ".csv", ".db") else {}
    if suffix == ".csv":  # a cell has no type
        cells = {each: json.dumps(each) for each in (*COLUMNS["n"], *COLUMNS["x"])} | {None: ""}
        want |= {name: [cells.get(value, value) for value in want[name]] for name in COLUMNS}
    assert {name: list(map(repr, values)) for name, values in columns.items()} == {
        name: list(map(repr, values)) for name, values in want.items()
    }


@pytest.mark.parametrize(
    ("suffix", "vector", "column"), [(".jsonl", "0.0", "-0.0"), (".db", "-0.0", "0.0"), (".parquet", "-0.0", "-0.0")]
)
def test_a_zero_below_zero_loses_its_sign_in_json_vectors_and_in_sqlite_columns(
    tmp_path, monkeypatch, suffix, vector, column
):
    monkeypatch.setitem(COLUMNS, "x", [-0.0] * 8)
    found, columns = read_back(write(tmp_path / f"x{suffix}", np.full((8, 3), -0.0, np.float32)))
    assert ({*map(repr, found.ravel().tolist())}, {*map(repr, columns["x"])}) == ({vector}, {column})


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
def test_the_header_of_npy_has_a_fixed_size(tmp_path, dtype):
    for shape in ((0, 1), (10**12, 768), (3, 2)):
        with NpyFile(tmp_path / "x.npy", META) as writer:
            (writer.rows, writer.width), writer.dtype = shape, np.dtype(dtype)
            writer.complete(stream := io.BytesIO())
        assert len(stream.getvalue()) == writer.header_bytes, shape
        stream.seek(0)
        assert np.lib.format.read_magic(stream) == (1, 0)
        assert np.lib.format.read_array_header_1_0(stream) == (shape, False, np.dtype(dtype))


@each_format
def test_no_rows_still_have_their_width_and_columns(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", vectors_of("float16")[:0], cuts=())
    if suffix == ".jsonl":
        assert path.read_bytes() == b""
    elif suffix == ".csv":
        assert path.read_bytes() == b"row,id,text,title,may,n,x,embedding\r\n"
    elif suffix == ".db":
        assert (read(path)[1]["precision"], read(path)[1]["dim"]) == ("float16", 5)
    else:
        found, columns = read_back(path)
        assert (found.shape, found.dtype) == ((0, 5), np.float16)
        assert all(len(values) == 0 for values in columns.values())


@each_format
def test_the_bytes_do_not_depend_on_the_blocks_and_name_the_run(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", rows("float32"))
    whole = path.read_bytes()
    if suffix == ".parquet":
        assert json.loads(pq.read_schema(path).metadata[b"fastflow"]) == META
    elif suffix == ".db":
        assert META.items() <= read(path)[1].items()
    for cuts in ((), (1, 2, 3, 4, 5, 6, 7), (0, 5, 5)):
        path.unlink()
        assert write(path, rows("float32"), cuts).read_bytes() == whole, cuts


@each_format
def test_a_file_gets_its_name_when_it_is_whole_or_leaves_an_earlier_one(tmp_path, suffix):
    path, named = tmp_path / f"x{suffix}", []

    def begun():
        writer = writer_for(path)(path, META)
        writer.begin()
        writer.write(block(vectors_of("float32")))
        return writer

    with begun() as writer:
        writer.seal = lambda whole: named.append(whole.read_bytes() if not path.exists() else b"named before")
        writer.finish()
    assert named == [path.read_bytes()]
    path.write_bytes(b"the file of an earlier run")
    with begun() as writer:
        writer.remove()
    assert path.read_bytes() == b"the file of an earlier run"
    path.unlink()
    with begun() as writer:
        path.mkdir()
        with pytest.raises(FastflowError, match="cannot be written: Is a directory"):
            writer.finish()
        writer.remove()
    assert list(tmp_path.iterdir()) == [path]
    absent = tmp_path / "absent" / path.name
    with pytest.raises(FastflowError, match=r"cannot be written: No such file or directory; make the folder .*absent"):
        writer_for(absent)(absent, META)


def test_the_suffix_decides():
    kinds = [writer_for(Path(f"x{suffix}")) for suffix in (".npy", ".jsonl", ".csv", ".parquet", ".db")]
    assert kinds == [NpyFile, JsonLinesFile, CsvFile, ParquetOutput, DatabaseFile]
    assert len(WRITERS) == len(kinds)
    for name in ("x.arrow", "x", "x.npy.gz", "x.NPY", "x.npz"):
        with pytest.raises(UsageError, match=r"unknown suffix .* \.npy, \.jsonl, \.csv, \.parquet, \.db"):
            writer_for(Path(name))


def test_the_record_of_a_run_that_was_killed_after_its_last_step_is_removed(tmp_path):
    target = tmp_path / "x.npy"
    target.write_bytes(b"whole")
    state_path(target).write_text("{}")
    with pytest.raises(UsageError, match=r"x\.npy is finished, and there is no x\.npy\.run\.json, which names"):
        check_known(target)
    assert list(tmp_path.iterdir()) == [target]


def test_a_partial_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    partial_path(tmp_path / "x.npy").symlink_to(tmp_path / "precious")
    with pytest.raises(FastflowError, match=r"x\.npy\.partial cannot be written: Too many levels of symbolic links"):
        NpyFile(tmp_path / "x.npy", META)
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_file_that_is_replaced_before_it_is_locked_is_not_taken_for_the_new_one(tmp_path, monkeypatch):
    path, waited, lock = tmp_path / ("a" * 64 + ".partial"), [], atomic.try_lock

    def lock_late(handle):
        if not (tmp_path / "first").exists():
            path.rename(tmp_path / "first")
            path.touch()
        return lock(handle)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "try_lock", lock_late)
        with partial.open_partial(path) as handle:
            assert os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    with partial.open_partial(path) as first:
        os.write(first.fileno(), b"first")
        monkeypatch.setattr(partial.time, "sleep", lambda seconds: path.rename(tmp_path / "done"))
        with partial.open_partial(path, waiting=lambda: waited.append(1)) as second:
            assert os.fstat(second.fileno()).st_size == 0
    assert waited == [1]
    assert (tmp_path / "done").read_bytes() == b"first"


@settings(deadline=None, derandomize=True)
@given(arrays.arrays(np.float32, (3, 4), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_nine_digits_give_float32_back_exactly(vectors):
    rows = [json.loads(line)["embedding"] for line in json_lines(block(vectors)).splitlines()]
    assert np.array_equal(np.array(rows, np.float32), vectors)


def test_json_lines_hold_index_id_text_and_numbers_in_utf8_whatever_the_locale(monkeypatch):
    raw, odd = io.BytesIO(), 'quote " backslash \\ tab \t é \u2028 \U0001f600 \x00'
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    vectors = np.array([[math.pi, -0.25], [0, 3e-9]], np.float32)
    StandardOutput().write(Block([4, 6], [odd, ""], vectors, ids={"id": ["k", 7]}))
    StandardOutput().write(Block([4], ["a"], np.zeros((1, 1))))
    written = raw.getvalue().decode("utf-8")
    assert [json.loads(line) for line in written.removesuffix("\n").split("\n")] == [
        {"index": 4, "id": "k", "text": odd, "embedding": [3.14159274, -0.25]},
        {"index": 6, "id": 7, "text": "", "embedding": [0, 3.00000003e-09]},
        {"index": 4, "text": "a", "embedding": [0]},
    ]
    assert written.startswith('{"index": 4, "id": "k", "text": ')


def test_a_terminal_gets_a_short_line_a_row(monkeypatch, capsys):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 24)))
    vectors = np.linspace(-9, 9, 3 * 256, dtype=np.float32).reshape(3, 256)
    out = Terminal()
    out.write(Block([0, 1, 2], ["short", "long " * 40, "tab\tbell\x07"], vectors))
    out.finish()
    lines = raw.getvalue().decode().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[:2] for line in lines] == [["0", "short"], ["1", "long"], ["2", "tab"]]
    assert "[ -9.00  -8.98  -8.95 … 256 numbers]" in lines[0]
    assert "\x07" not in lines[2]
    assert "-o FILE, or a pipe, gets whole vectors" in capsys.readouterr().err
