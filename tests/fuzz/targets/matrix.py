"""A file of vectors. Bytes: the .npy."""

import io

import numpy as np
from harness import Finding, check_contract, scratch

from fastflow.files.read.matrix import MatrixFile, is_matrix_file

FOLDER = scratch()


def one(data: bytes) -> None:
    path = FOLDER / "x.npy"
    path.write_bytes(data)
    if not is_matrix_file(path):
        raise Finding("a .npy is no file of vectors")
    check_contract(read)


def read() -> None:
    """All rows, as often as there are any."""
    with MatrixFile(str(FOLDER / "x.npy")) as file:
        found = sum(len(block) for block in file.blocks(2))
        if found != len(file.matrix):
            raise Finding(f"{found} rows of {len(file.matrix)}")


def seeds() -> list[bytes]:
    out = []
    for dtype in ("<f4", "<f8", "<f2", ">f4"):
        file = io.BytesIO()
        np.save(file, np.arange(12).reshape(3, 4).astype(dtype))
        out.append(file.getvalue())
    return out
