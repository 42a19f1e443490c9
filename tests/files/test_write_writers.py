"""The contract of every format: what is written is read back bit for bit, and a file is whole when it has its name."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.files.write.database import DatabaseFile
from fastflow.files.write.outputs import JsonLinesFile, NpyFile, npy_header
from fastflow.files.write.parquet_output import ParquetOutput
from fastflow.files.write.printing import Block
from fastflow.files.write.writers import WRITERS, writer_for

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
SCORES = np.array([-1.5, 1 / 3, -1e300, 0.0, 5e-324, -7.0, 2.0, 1e-9])
META = {"fingerprint": "f" * 64, "normalized": False}
DTYPES = ("float32", "float16", "int8", "uint8")
each_format = pytest.mark.parametrize("suffix", WRITERS)


def rows(dtype: str) -> np.ndarray:
    """Eight rows, with the least and the largest numbers of the dtype."""
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
            ids = COLUMNS["id"][at] if kind.keeps_ids else None
            kept = {name: COLUMNS[name][at] for name in ("title", "may", "n", "x") if kind.keeps_ids}
            scores = SCORES[: len(vectors)][at] if kind.keeps_log_prob else None
            writer.write(Block(range(len(vectors))[at], ODD[at], ids, vectors[at], scores, kept))
        assert not path.exists()
        writer.finish()
    assert list(path.parent.iterdir()) == [path]
    return path


@each_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_everything_is_read_back_bit_for_bit(tmp_path, suffix, dtype):
    vectors = rows(dtype)
    found, columns = read_back(write(tmp_path / f"x{suffix}", vectors))
    if suffix == ".jsonl":  # numbers of JSON have no dtype, and no zero below zero
        assert np.array_equal(found.astype(dtype), vectors)
    else:
        assert (found.tobytes(), found.dtype) == (vectors.tobytes(), dtype)
    kind = writer_for(Path(f"x{suffix}"))
    want = dict(COLUMNS) if kind.keeps_ids else {}
    want |= {"log_prob": SCORES.tolist()} if kind.keeps_log_prob else {}
    want |= {"index": list(range(8))} if suffix in (".jsonl", ".db") else {}
    want |= {"text": ODD} if suffix in (".jsonl", ".db") else {}
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
def test_the_header_of_npy_has_a_fixed_size(dtype):
    for shape in ((0, 1), (10**12, 768), (3, 2)):
        stream = io.BytesIO(npy_header(shape, np.dtype(dtype), 128))
        assert len(stream.getvalue()) == 128, shape
        assert np.lib.format.read_magic(stream) == (1, 0)
        assert np.lib.format.read_array_header_1_0(stream) == (shape, False, np.dtype(dtype))


@each_format
def test_no_rows_still_have_their_width_and_columns(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", vectors_of("float16")[:0], cuts=())
    if suffix == ".jsonl":
        assert path.read_bytes() == b""
    elif suffix == ".db":
        assert (read(path)[1]["precision"], read(path)[1]["dim"]) == ("float16", 5)
    else:
        found, columns = read_back(path)
        assert (found.shape, found.dtype) == ((0, 5), np.float16)
        assert all(len(values) == 0 for values in columns.values())


@each_format
def test_the_run_is_recorded(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", rows("float32"))
    if suffix == ".parquet":
        assert json.loads(pq.read_schema(path).metadata[b"fastflow"]) == META
    elif suffix == ".db":
        assert META.items() <= read(path)[1].items()


@each_format
@pytest.mark.parametrize("cuts", [(), (1, 2, 3, 4, 5, 6, 7), (0, 5, 5)])
def test_the_bytes_do_not_depend_on_the_blocks(tmp_path, suffix, cuts):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = write(tmp_path / "whole" / f"x{suffix}", rows("float32")).read_bytes()
    assert write(tmp_path / "cut" / f"x{suffix}", rows("float32"), cuts).read_bytes() == whole


@each_format
def test_a_removed_file_leaves_nothing(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"the file of an earlier run")
    with writer_for(path)(path, META) as writer:
        writer.begin()
        writer.write(block(vectors_of("float32")))
        writer.remove()
    assert path.read_bytes() == b"the file of an earlier run"
    assert list(tmp_path.iterdir()) == [path]


@each_format
def test_a_folder_that_is_not_there(tmp_path, suffix):
    path = tmp_path / "absent" / f"x{suffix}"
    with pytest.raises(FastflowError, match=r"cannot be written: No such file or directory; make the folder .*absent"):
        writer_for(path)(path, META)


@each_format
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


@each_format
def test_a_file_is_whole_when_it_gets_its_name(tmp_path, suffix):
    """A run that is killed right after the renaming must leave the whole file."""
    path, named = tmp_path / f"x{suffix}", []
    with writer_for(path)(path, META) as writer:
        writer.begin()
        writer.write(block(vectors_of("float32")))
        writer.seal = lambda whole: named.append(whole.read_bytes() if not path.exists() else b"named before")
        writer.finish()
    assert named == [path.read_bytes()]


def test_the_suffix_decides():
    kinds = [writer_for(Path(f"x{suffix}")) for suffix in (".npy", ".jsonl", ".parquet", ".db")]
    assert kinds == [NpyFile, JsonLinesFile, ParquetOutput, DatabaseFile]
    assert len(WRITERS) == len(kinds)
    for name in ("x.arrow", "x", "x.npy.gz", "x.NPY"):
        with pytest.raises(UsageError, match=r"unknown suffix .* \.npy, \.jsonl, \.parquet, \.db"):
            writer_for(Path(name))
    for name in ("x.npz", "x.safetensors"):
        with pytest.raises(UsageError, match=rf"^{name}: fastflow no longer writes .* use \.npy for vectors"):
            writer_for(Path(name))
