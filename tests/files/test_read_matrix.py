"""Matrices of vectors: the forms in which they come, and files that are no matrix of floats."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from numpy.lib import format as npy

from fastflow.errors import FastflowError
from fastflow.files.read import matrix as module
from fastflow.files.read.matrix import Matrix, MatrixFile

from support.matrices import make_vectors
from support.memory import grown
from support.refusals import refuses


def saved(path, array, version=None):
    with open(path, "wb") as file:
        npy.write_array(file, array, version, allow_pickle=array.dtype.hasobject)
    return str(path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
def test_rows_are_native_float32(tmp_path, dtype, order):
    x = make_vectors(50, 7).astype(np.float16)
    with MatrixFile(saved(tmp_path / "x.npy", np.array(x.astype(dtype), order=order))) as source:
        assert source.matrix.shape == (50, 7)
        for rows in (slice(0, 50), slice(3, 9), slice(0, None, 7), np.array([4, 4, 49, 0])):
            found = source.matrix[rows]
            assert found.dtype == np.float32
            assert found.flags.c_contiguous
            assert found.flags.writeable  # PyTorch takes no other
            assert np.array_equal(found, x[rows].astype(np.float32))
        blocks = list(source.blocks(16, 10))
        assert [len(block) for block in blocks] == [16, 16, 8]
        assert np.array_equal(np.concatenate(blocks), x[10:].astype(np.float32))


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("count", [0, 1])
def test_few_rows_and_both_versions(tmp_path, version, count):
    with MatrixFile(saved(tmp_path / "x.npy", make_vectors(count, 3), version)) as source:
        assert source.matrix.shape == (count, 3)
        assert source.matrix[0:9].shape == (count, 3)
        assert len(list(source.blocks(4))) == count


def test_a_bad_row_has_its_number_in_the_whole():
    x = make_vectors(60, 4).astype(np.float64)
    x[41, 2] = np.nan
    matrix = Matrix(x, "v.npy")
    for part, rows in (
        (matrix, slice(40, 50)), (matrix, slice(1, None, 10)), (matrix, np.array([3, 41])),
        (matrix.take(np.array([0, 41, 42])), slice(0, 3)),
        (matrix.take(np.arange(30, 50)).take(np.array([1, 11])), slice(0, 2)),
    ):  # fmt: skip
        with pytest.raises(FastflowError, match=r"^v\.npy, row 41: holds NaN or infinity"):
            part[rows]
    assert matrix.take(np.arange(30, 50)).number(11) == 41
    assert len(matrix[0:41]) == 41
    x[41, 2] = -1e39
    with pytest.raises(FastflowError, match=r"row 41: holds NaN or infinity, or what float32 cannot hold"):
        matrix[40:44]


def test_no_message_shows_numbers_that_float32_can_hold():
    edge = np.array([[np.finfo(np.float32).max, np.finfo(np.float32).tiny]], np.float64)
    assert np.isfinite(Matrix(edge, "v")[0:1]).all()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4, np.float32), r"a matrix \(N, D\), and this has the shape \(4,\)"),
        (np.float32(3), r"the shape \(\)"),
        (np.zeros((2, 3, 4)), r"the shape \(2, 3, 4\)"),
        (np.zeros((5, 0)), r"the shape \(5, 0\)"),
        (np.zeros((2, 3), np.int64), "float16, float32, float64, and this holds 'int64'"),
        (np.zeros((2, 3), np.uint8), "holds 'uint8'"),
        (np.zeros((2, 3), complex), "holds 'complex128'"),
        (np.zeros((2, 3), "U3"), "holds 'str"),
        (np.zeros((2, 3), "f4,f4"), "holds 'void"),
        (np.array([[1, "a"]], object), "holds 'object'"),
    ],
)
def test_an_array_of_another_kind(tmp_path, array, message):
    with pytest.raises(FastflowError, match=rf"x\.npy: vectors .*{message}"):
        MatrixFile(saved(tmp_path / "x.npy", np.asarray(array)))


def test_a_mask_is_not_ignored():
    with pytest.raises(FastflowError, match=r"^v: a masked array would be read without its mask"):
        Matrix(np.ma.masked_less(make_vectors(9, 4), 0), "v")


def header(shape, descr="<f4"):
    out = io.BytesIO()
    out.write(npy.magic(1, 0))
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".ljust(117).encode() + b"\n"
    return out.getvalue() + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a .npy file: EOF"),
        (b"\x93NUMPY", "is not a .npy file: EOF"),
        (b"a text\n" * 9, "is not a .npy file: the magic string is not correct"),
        (b"PK\x03\x04" + bytes(200), "is not a .npy file"),
        (b"\x93NUMPY\x03\x00" + bytes(80), "version 3.0 of .npy is of tables"),
        (header((3, 4)) + bytes(47), "is damaged: its header says (3, 4) of float32, and its 175 bytes differ"),
        (header((3, 4)) + bytes(49), "is damaged"),
        (header((2**62, 4)), "is damaged"),
        (header((10**30, 4)), "is damaged"),
        (header((3, 2**40)), "the shape"),
        (header((-1, 4)), "the shape"),
        (header((3, -4)), "the shape"),
        (header("x"), "is not a .npy file: shape is not valid"),
        (header((3, 4), "<f3"), "is not a .npy file"),
        (header((3, 4), "|O") + b"cos\nsystem\n(S'true'\ntR.", "this holds 'object'"),
        (header((3, 4)).replace(b"shape", b"sha\xffe"), "is not a .npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"[" * 65_535, "is not a .npy file"),
        (header((3, 4)).replace(b"),", b"(,"), "is not a .npy file"),  # tokenize raises TokenError
        (header((3, 4)).replace(b" 'shape'", b"b'shape'"), "is not a .npy file"),  # TypeError: its keys have no order
    ],
)
def test_a_file_that_lies(tmp_path, content, message):
    (tmp_path / "x.npy").write_bytes(content)
    refuses(MatrixFile, str(tmp_path / "x.npy"), message)


@pytest.mark.parametrize("path", ["-", "x.npz", "x.npy.gz"])
def test_a_path_of_no_matrix(path):
    refuses(MatrixFile, path, "vectors come as a .npy file")


def test_paths_that_cannot_be_opened(tmp_path):
    refuses(MatrixFile, str(tmp_path / "absent.npy"), "cannot be opened: No such file")
    (tmp_path / "folder.npy").mkdir()
    refuses(MatrixFile, str(tmp_path / "folder.npy"), "cannot be opened: Is a dir")


@pytest.mark.parametrize("change", ["longer", "shorter", "touched"])
def test_a_file_that_changes_while_it_is_read(tmp_path, change):
    path = tmp_path / "x.npy"
    with MatrixFile(saved(path, make_vectors(4000, 16))) as source:
        blocks = source.blocks(100)
        next(blocks)
        size = path.stat().st_size
        if change == "touched":
            os.utime(path, ns=(1, 1))
        else:
            os.truncate(path, size - 4 if change == "shorter" else size + 4)  # in place, as another program would
        with pytest.raises(FastflowError, match="was changed while it was read"):
            next(blocks)


def test_pages_are_given_back_and_rows_stay_right(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HELD", 1000)
    x = make_vectors(3000, 16)
    with MatrixFile(saved(tmp_path / "x.npy", x)) as source:
        assert np.array_equal(np.concatenate(list(source.blocks(64))), x)
        rows = np.random.default_rng(0).permutation(3000)
        assert np.array_equal(np.concatenate([source.matrix[rows[i : i + 50]] for i in range(0, 3000, 50)]), x[rows])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path, run_python):
    path, rows = tmp_path / "x.npy", 1 << 20
    path.write_bytes(header((rows, 128)))
    os.truncate(path, 128 + rows * 512)  # 512 MB, none of it on disk
    before = "from fastflow.files.read.matrix import MatrixFile; source = MatrixFile(sys.argv[1])"
    work = "with source: sum(float(block[0, 0]) for block in source.blocks(4096))"
    assert grown(run_python, before, work, path) < 150_000
