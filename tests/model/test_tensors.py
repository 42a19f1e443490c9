"""Mapped safetensors files: what the library accepts is read as it reads it, and what is damaged is refused."""

from __future__ import annotations

import json
import os
import struct
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError
from fastflow.kernels.stored import BFLOAT16
from fastflow.model.tensors import DTYPES, MappedTensors, read_tensors

GOOD = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
}


def write(path: Path, header: object, data: bytes = bytes(range(32)), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def changed(name: str, **fields: object) -> dict[str, object]:
    return {**GOOD, name: {**GOOD[name], **fields}}


def test_every_dtype_is_read_as_it_was_written(tmp_path):
    import torch
    from safetensors.torch import save_file

    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
    tensors = {str(kind): (torch.arange(12).reshape(3, 4) * 7).to(kind) for kind in kinds}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3)}
    save_file(tensors, tmp_path / "t.safetensors", {"format": "pt"})
    mapped, copies = MappedTensors(tmp_path / "t.safetensors"), read_tensors(tmp_path / "t.safetensors")
    assert mapped.arrays.keys() == copies.keys() == tensors.keys()
    assert mapped.arrays["torch.bfloat16"].dtype == BFLOAT16
    for name, tensor in tensors.items():
        want = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        assert (copies[name].dtype, copies[name].shape) == (want.dtype, want.shape)
        assert np.array_equal(copies[name], want)
        assert copies[name].flags.owndata or copies[name].size == 0
        assert not mapped.arrays[name].flags.writeable or mapped.arrays[name].size == 0


def test_data_that_start_anywhere(tmp_path):
    for spaces in range(8):
        path = write(tmp_path / f"{spaces}.safetensors", json.dumps(GOOD).encode() + b" " * spaces)
        found = MappedTensors(path).arrays
        assert np.array_equal(found["a"], np.frombuffer(bytes(range(24)), np.float32).reshape(2, 3))
        assert found["b"][0] == int.from_bytes(bytes(range(24, 32)), "little")


def test_released_pages_are_read_again_and_arrays_keep_the_file(tmp_path):
    path = write(tmp_path / "t.safetensors", GOOD)
    mapped = MappedTensors(path)
    a, before = mapped.arrays["a"], mapped.arrays["a"].copy()
    mapped.release()
    other = write(tmp_path / "other.safetensors", GOOD, bytes(32))
    os.replace(other, path)  # what a download or an installer does
    del mapped
    assert np.array_equal(a, before)
    assert not MappedTensors(path).arrays["a"].any()


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        (changed("b", data_offsets=[16, 24]), 32, None), (changed("b", data_offsets=[28, 36]), 36, None),
        (changed("b", data_offsets=[24, 40]), 40, None), (changed("b", data_offsets=[32, 24]), 32, None),
        (changed("a", data_offsets=[0, 2**63]), 32, None), (changed("a", data_offsets=[-8, 16]), 32, None),
        (changed("a", shape=[2, 4]), 32, None), (changed("a", shape=[-2, -3]), 32, None),
        (changed("a", shape=[2**40, 2**40]), 32, None), (changed("a", shape="6"), 32, None),
        (changed("a", dtype="F33"), 32, None), (changed("a", data_offsets=[0]), 32, None), ({"a": 3}, 32, None),
        ([], 32, None), (GOOD, 31, None), (GOOD, 33, None), (GOOD, 32, 3), (GOOD, 32, 10**6), (GOOD, 32, 2**63),
        (b"\xff" * 20, 32, None), (b"", 0, None), (b'{"a"', 32, None), (b"[" * 100000, 32, None),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused(tmp_path, header, data, length):
    path = write(tmp_path / "t.safetensors", header, bytes(data), length)
    with pytest.raises(FastflowError, match=r"t\.safetensors is damaged or not safetensors"):
        MappedTensors(path)


@pytest.mark.parametrize(
    "entry", [GOOD["a"] | {"data_offsets": [8, 33]}, GOOD["a"] | {"shape": [2, 2]}, {"dtype": "F32"}]
)
def test_places_are_checked_here_too(tmp_path, entry, monkeypatch):
    """The library and this reader open the file one after another: what lies between must not be believed."""
    monkeypatch.setattr("safetensors.safe_open", lambda *_: nullcontext())
    path = write(tmp_path / "t.safetensors", {"a": entry})
    with pytest.raises(FastflowError, match="is damaged or not safetensors"):
        MappedTensors(path)


WHOLE = struct.pack("<Q", len(json.dumps(GOOD))) + json.dumps(GOOD).encode() + bytes(range(32))


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=400)
@given(
    place=st.integers(0, len(WHOLE) - 33),
    value=st.integers(0, 255),
    cut=st.one_of(st.none(), st.integers(0, len(WHOLE))),
)
def test_any_changed_header_is_read_as_the_library_reads_it_or_refused(tmp_path_factory, place, value, cut):
    data = bytearray(WHOLE)
    data[place] = value
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(data[:cut])
    try:
        want = dict(safetensors.deserialize(bytes(data[:cut])))
    except safetensors.SafetensorError:
        want = None
    if want is None or not {entry["dtype"] for entry in want.values()} <= DTYPES.keys():
        with pytest.raises(FastflowError, match=r"mutated\.safetensors"):
            MappedTensors(path)
        return
    found = MappedTensors(path).arrays
    assert found.keys() == want.keys()
    for name, entry in want.items():
        assert list(found[name].shape) == entry["shape"]
        assert found[name].tobytes() == bytes(entry["data"])
