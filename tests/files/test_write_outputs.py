"""Output files: each is read back by the library its format belongs to, and none is left half-written."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from safetensors import safe_open

from fastflow.errors import FastflowError
from fastflow.files.write.outputs import SafetensorsFile, npy_header
from fastflow.files.write.writers import writer_for

from support.outputs import META, block, read_json_lines, vectors_of, write

DTYPES = ("float32", "float64", "float16", "int8", "uint8")


SUFFIXES = (".npy", ".npz", ".jsonl", ".safetensors")


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
        second.skip(block(vectors[:2], ids=True))
        second.skip(block(vectors[2:4], 2, ids=True))
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


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_file_is_whole_when_it_gets_its_name(tmp_path, suffix):
    """Its header is written last: a run that is killed right after the renaming must leave it."""
    path = tmp_path / f"x{suffix}"
    named = []
    with writer_for(path)(path, META) as writer:
        writer.begin()
        writer.write(block(vectors_of("float32")))
        writer.seal = lambda whole: named.append(whole.read_bytes() if not path.exists() else b"named before")
        writer.finish()
        assert named == [path.read_bytes()]
    assert named == [path.read_bytes()]
