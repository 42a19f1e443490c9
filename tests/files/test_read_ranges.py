"""``--ranges``: the file that they come from, and the runs that take them: whole, resumed, in parts, refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.ranges import Ranges, digest_of, read_ranges, values_of

from support.commands import assert_one_sentence, run
from support.matrices import make_vectors
from support.runs import check_parts, stopped_at


@pytest.fixture(scope="module")
def some(model, sentences) -> np.ndarray:
    """Embeddings of other texts than those that are stored, so that some numbers are outside of the ranges."""
    return Runtime(model).encode(sentences[:100])


@pytest.fixture
def file(tmp_path, some):
    np.save(tmp_path / "ranges.npy", extremes(some))
    return tmp_path / "ranges.npy"


def extremes(z: np.ndarray) -> np.ndarray:
    return np.stack([z.min(axis=0), z.max(axis=0)])


def test_two_rows_are_the_ranges_and_more_rows_have_them(tmp_path, file, some):
    z = make_vectors(9000)  # more than are read at a time
    for name, array in (("some", some), ("many", z), ("double", some.astype(np.float64))):
        np.save(tmp_path / f"{name}.npy", array)
        found = read_ranges(tmp_path / f"{name}.npy", "int8")
        np.testing.assert_array_equal(values_of(found), extremes(array).astype(np.float32), strict=True)
    taken = read_ranges(tmp_path / "some.npy", "uint8")
    assert taken == read_ranges(file, "int8")  # equal numbers, whatever the file
    assert digest_of(taken) != digest_of(read_ranges(tmp_path / "many.npy", "int8"))
    assert read_ranges(None, "float32") is values_of(None) is digest_of(None) is None


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 32), np.float32), "has 1 row; give two, the minima and the maxima, or some hundred embeddings"),
        (np.zeros((0, 32), np.float32), "has 0 rows; give two"),
        (np.stack([np.ones(32), np.arange(32.0)]), "read as minima and maxima: dimension 0 goes from 1 to 0; give a"),
        (np.zeros((2, 32), np.int8), "vectors are float16, float32, float64, and this holds 'int8'"),
        (np.full((5, 32), np.nan), "row 0: holds NaN or infinity"),
        (np.zeros(32), r"vectors come as a matrix \(N, D\)"),
    ],
)  # fmt: skip
def test_a_file_of_no_ranges_is_one_sentence(tmp_path, array, message):
    np.save(tmp_path / "r.npy", array)
    with pytest.raises(FastflowError, match=rf"^--ranges {re.escape(str(tmp_path))}/r\.npy[:,] ?.*{message}"):
        read_ranges(tmp_path / "r.npy", "int8")


@pytest.mark.parametrize("precision", ["int8", "uint8"])
@pytest.mark.parametrize("more", [(), ("--dedupe",), ("--shard", "1/1")])
def test_the_command_gives_the_numbers_of_encode(model, corpus, sentences, some, file, tmp_path, precision, more):
    out = tmp_path / "out.npz"
    done = run("embed", corpus, "-m", model, "--precision", precision, "--ranges", file, "-o", out, "--quiet", *more)
    assert (done.exit_code, done.stderr) == (0, "")
    with np.load(out) as found:
        want = Runtime(model).encode(sentences, precision=precision, ranges=extremes(some))
        np.testing.assert_array_equal(found["embeddings"], want, strict=True)
        assert json.loads(str(found["meta"]))["ranges"] == read_ranges(file, precision).sha256
        assert (want != Runtime(model).encode(sentences, precision=precision)).any()  # not the one range about 0


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet"])
def test_parts_agree_on_the_ranges(model, corpus, file, some, tmp_path, suffix, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("embed", corpus, "-m", model, "--precision", "int8", "--ranges")
    check_parts(suffix, 2, *words, file)
    manifest = json.loads(Path(f"parts/1{suffix}.shard.json").read_text())
    assert manifest["run"]["ranges"] == read_ranges(file, "int8").sha256
    np.save(tmp_path / "other.npy", some[50:])
    other = run(*words, "other.npy", "--shard", "1/2", "-o", f"parts/x{suffix}", "--quiet")
    assert_one_sentence(other, 1, "are of two sets of options: ranges is '")


def test_a_resumed_run_has_the_same_numbers_whatever_their_file(model, corpus, file, some, tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.files.embed.WINDOW", 64)
    target, words = tmp_path / "out.npy", ("embed", corpus, "-m", model, "--precision", "int8", "--quiet", "-o")
    np.save(tmp_path / "same.npy", some)
    np.save(tmp_path / "other.npy", some[50:])
    assert run(*words, tmp_path / "whole.npy", "--ranges", file).exit_code == 0
    with stopped_at(2):
        run(*words, target, "--ranges", file)
    for options in ((), ("--ranges", tmp_path / "other.npy")):
        refused = run(*words, target, "--resume", *options)
        assert_one_sentence(refused, 1, "set of options (ranges); give the same again")
    assert run(*words, target, "--resume", "--ranges", tmp_path / "same.npy").exit_code == 0
    assert target.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_transform_takes_ranges(model, some, file, tmp_path):
    np.save(tmp_path / "pooled.npy", pooled := Runtime(model).pool(["the dog", "a cat"] * 8))
    given = ("transform", tmp_path / "pooled.npy", "-m", model, "--precision", "uint8", "-o", tmp_path / "out.npy")
    done = run(*given, "--ranges", file, "--quiet")
    assert (done.exit_code, done.stderr) == (0, "")
    want = Runtime(model).transform(pooled, precision="uint8", ranges=extremes(some))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), want, strict=True)
    np.save(tmp_path / "narrow.npy", extremes(some)[:, :12])
    narrow = run(*given, "--ranges", tmp_path / "narrow.npy", "--quiet")
    assert_one_sentence(narrow, 2, "holds ranges of 12 dimensions, and the vectors that are stored have 32")


def test_ranges_are_compared_by_their_numbers(some):
    assert Ranges("a", "0", some) == Ranges("b", "0", some) != Ranges("a", "1", some)
    with pytest.raises(UsageError, match=r"--ranges a: holds ranges of 32 dimensions"):
        Ranges("a", "0", some).check_width(31)
