"""``--ranges``: the file that they come from, and the runs that take them: whole, resumed, in parts, refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.files.embed import embed_file
from fastflow.files.parts.manifest import manifest_path
from fastflow.files.parts.merging import merge
from fastflow.files.read.ranges import Ranges, digest_of, read_ranges, values_of
from fastflow.files.run import Run
from fastflow.files.settings import Settings

from support.commands import assert_one_sentence, run
from support.matrices import make_vectors


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


def test_errors_of_the_command_are_one_sentence(model, corpus, file, tmp_path):
    given = ("embed", corpus, "-m", model, "-o", tmp_path / "out.npy", "--ranges")
    wrong = "--ranges divides the numbers of --precision int8 or uint8, and the precision is float32; leave it out"
    assert_one_sentence(run(*given, file), 2, wrong)
    int8 = ("--precision", "int8")
    assert_one_sentence(run(*given, tmp_path / "no.npy", *int8), 1, "no.npy cannot be opened: No such file")
    assert_one_sentence(run(*given, corpus, *int8), 2, f"--ranges {corpus}: vectors come as a .npy file")
    assert_one_sentence(run(*given, file, *int8, "--dim", 12), 2, "and the vectors that are stored have 12; make them")
    assert_one_sentence(run(*given, file, *int8, "--ray", "local"), 2, "--ranges does not work with --ray")
    database = run("embed", corpus, "-m", model, "-o", tmp_path / "out.db", *int8, "--ranges", file)
    assert_one_sentence(database, 2, "fastflow search compares int8 vectors of one range about 0")
    itself = run("embed", corpus, "-m", model, "-o", file, *int8, "--ranges", file)
    assert_one_sentence(itself, 2, "is the input; choose another output with -o")
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


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


def test_a_resumed_run_with_other_ranges_is_refused(model, corpus, file, some, tmp_path, monkeypatch):
    runtime, target = Runtime(model), tmp_path / "out.npy"
    settings = Settings(precision="int8", ranges=read_ranges(file, "int8"))
    whole = tmp_path / "whole.npy"
    embed_file(runtime, str(corpus), whole, settings, Run(quiet=True))
    monkeypatch.setattr("fastflow.files.embed.WINDOW", 64)
    monkeypatch.setattr("fastflow.files.write.partial.State.save", stopped_after(2))
    with pytest.raises(KeyboardInterrupt):
        embed_file(runtime, str(corpus), target, settings, Run(quiet=True))
    monkeypatch.undo()
    np.save(tmp_path / "other.npy", some[50:])
    for other in (None, read_ranges(tmp_path / "other.npy", "int8")):
        with pytest.raises(FastflowError, match=r"from a run with another .*set of options; give the same again"):
            embed_file(
                runtime, str(corpus), target, Settings(precision="int8", ranges=other), Run(resume=True, quiet=True)
            )
    np.save(tmp_path / "same.npy", some)
    same = Settings(precision="int8", ranges=read_ranges(tmp_path / "same.npy", "int8"))
    assert embed_file(runtime, str(corpus), target, same, Run(resume=True, quiet=True)).resumed > 0
    assert target.read_bytes() == whole.read_bytes()


def stopped_after(windows: int):
    """``State.save`` that is interrupted after so many calls."""
    from fastflow.files.write.partial import State

    save, calls = State.save, []

    def stopped(self, *given):
        save(self, *given)
        calls.append(given)
        if len(calls) == windows:
            raise KeyboardInterrupt

    return stopped


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet"])
def test_parts_agree_on_the_ranges(model, corpus, file, some, tmp_path, suffix):
    runtime, parts = Runtime(model), tmp_path / "parts"
    parts.mkdir()
    given = {"precision": "int8", "ranges": read_ranges(file, "int8")}
    whole = tmp_path / f"whole{suffix}"
    embed_file(runtime, str(corpus), whole, Settings(**given), Run(quiet=True))
    first, second = (parts / f"{number}{suffix}" for number in (1, 2))
    embed_file(runtime, str(corpus), first, Settings(shard=(1, 2), **given), Run(quiet=True))
    np.save(tmp_path / "other.npy", some[50:])
    other = Settings(shard=(2, 2), precision="int8", ranges=read_ranges(tmp_path / "other.npy", "int8"))
    with pytest.raises(
        FastflowError, match=r"are of two sets of options: ranges is '[0-9a-f]{64}', and '[0-9a-f]{64}'"
    ):
        embed_file(runtime, str(corpus), second, other, Run(quiet=True))
    embed_file(runtime, str(corpus), second, Settings(shard=(2, 2), **given), Run(quiet=True))
    merge(parts, tmp_path / f"joined{suffix}")
    assert (tmp_path / f"joined{suffix}").read_bytes() == whole.read_bytes()
    assert json.loads(manifest_path(first).read_text())["run"]["ranges"] == given["ranges"].sha256


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
