"""A file of vectors, .npy, and one of ranges. Bytes: one that chooses between the two, then the file."""

import io

import numpy as np
from harness import Finding, check_contract, scratch

from fastflow.files.read.matrix import MatrixFile, is_matrix_file
from fastflow.files.read.ranges import read_ranges

FOLDER = scratch()


def one(data: bytes) -> None:
    path = FOLDER / "x.npy"
    path.write_bytes(data[1:])
    if not is_matrix_file(path):
        raise Finding("a .npy is no file of vectors")
    check_contract(lambda: read(data[:1] == b"\1"))


def read(ranges: bool) -> None:
    """All rows, as often as there are any; a file of ranges is one of vectors too."""
    if ranges:
        read_ranges(FOLDER / "x.npy", "int8")
        return
    with MatrixFile(str(FOLDER / "x.npy")) as file:
        found = sum(len(block) for block in file.blocks(2))
        if found != len(file.matrix):
            raise Finding(f"{found} rows of {len(file.matrix)}")


def seeds() -> list[bytes]:
    out = []
    for dtype in ("<f4", "<f8", "<f2", ">f4"):
        file = io.BytesIO()
        np.save(file, np.arange(12).reshape(3, 4).astype(dtype))
        out += [b"\0" + file.getvalue(), b"\1" + file.getvalue()]
    return out
