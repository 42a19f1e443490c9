"""Headers that are filled in at the end; test_write_writers.py has the contract of every format."""

from __future__ import annotations

import io

import numpy as np
import pytest
from safetensors import safe_open

from fastflow.files.write.outputs import SafetensorsFile, npy_header

from support.outputs import block, vectors_of


def test_safetensors_metadata_too_long_for_the_header_is_left_out(tmp_path):
    with SafetensorsFile(tmp_path / "x.safetensors", {"prompt": "x" * 4000}) as writer:
        writer.begin()
        writer.write(block(vectors_of("float32")))
        writer.finish()
    with safe_open(tmp_path / "x.safetensors", "numpy") as found:
        assert found.metadata() is None
        assert found.get_tensor("embeddings").shape == (7, 5)


@pytest.mark.parametrize("shape", [(0, 1), (10**12, 768), (3, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8"])
def test_npy_header_has_a_fixed_size(shape, dtype):
    header = npy_header(shape, np.dtype(dtype), 128)
    assert len(header) == 128
    stream = io.BytesIO(header)
    assert np.lib.format.read_magic(stream) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream) == (shape, False, np.dtype(dtype))
