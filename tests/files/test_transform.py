"""``fastflow transform``: rows, options and what is said of them; test_run.py has the contract of its runs."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.files import transform as module
from fastflow.files.run import Run, Settings, Summary
from fastflow.files.transform import transform_file

from support.commands import run
from support.matrices import make_vector_model, make_vectors
from support.runs import before_block


@pytest.fixture(scope="module")
def x():
    return make_vectors(5000, seed=2)  # more than a block of ROWS


@pytest.fixture
def npy(tmp_path, x):
    np.save(tmp_path / "v.npy", x)
    return tmp_path / "v.npy"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "out.npy"


@pytest.fixture(scope="module")
def runtime(vector_model):
    return Runtime(vector_model)


def transform(runtime, source, target, **options):
    return transform_file(runtime, str(source), target, Settings(**options), Run(quiet=True))


def test_the_model_is_named_once_nothing_else_is_wrong(vector_model, npy, target, tmp_path):
    np.save(tmp_path / "wide.npy", np.zeros((3, 999), np.float32))
    refused = run("transform", tmp_path / "wide.npy", "-m", vector_model, "-o", target)
    assert refused.exit_code == 1
    assert len(refused.stderr.splitlines()) == 1
    assert run("transform", npy, "-m", vector_model, "-o", target).stderr.startswith("fastflow: model ")


def test_a_mapped_file_of_several_blocks_is_what_transform_gives(vector_model, runtime, x, npy, target):
    result = run("transform", npy, "-m", vector_model, "-o", target)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "fastflow: 5,000 vectors, " in result.stderr
    assert len(x) > module.ROWS
    assert np.array_equal(np.load(target), runtime.transform(x))


@pytest.mark.parametrize("form", ["float16", "float64", ">f4", "fortran"])
def test_every_form_of_a_matrix(runtime, x, tmp_path, target, form):
    exact = x.astype(np.float16).astype(np.float32)
    np.save(tmp_path / "v.npy", np.asfortranarray(exact) if form == "fortran" else exact.astype(form))
    transform(runtime, tmp_path / "v.npy", target)
    assert np.array_equal(np.load(target), runtime.transform(exact))


def test_float64_is_for_computing_only(vector_model, x, npy, target):
    assert run("transform", npy, "-m", vector_model, "-o", target, "--dtype", "float64", "--quiet").exit_code == 0
    exact = Runtime(vector_model, dtype="float64").transform(x).astype(np.float32)
    assert np.load(target).dtype == np.float32
    assert np.abs(np.load(target) - exact).max() <= 1e-6 * np.abs(exact).max()


def test_pooled_vectors_of_a_model_with_an_encoder(weighted_model, sentences, tmp_path, target):
    runtime = Runtime(weighted_model)
    np.save(tmp_path / "pooled.npy", runtime.pool(sentences))
    assert run("transform", tmp_path / "pooled.npy", "-m", weighted_model, "-o", target, "--quiet").exit_code == 0
    assert np.array_equal(np.load(target), runtime.transform(runtime.pool(sentences)))


def test_no_rows_give_a_file_of_the_right_width(runtime, tmp_path, target, x):
    np.save(tmp_path / "none.npy", x[:0])
    assert transform(runtime, tmp_path / "none.npy", target, dim=7) == Summary()
    assert np.load(target).shape == (0, 7)


def test_a_row_that_overflows_is_named_by_its_range(tmp_path, target, x):
    runtime = Runtime(make_vector_model(tmp_path / "m", "whiten"))
    far = x.copy()
    far[4500] = 3e38
    np.save(tmp_path / "far.npy", far)
    with pytest.raises(FastflowError, match=r"far\.npy, rows 4096 to 4999: transform: row 404 gives NaN or infinity"):
        transform(runtime, tmp_path / "far.npy", target)


def test_a_change_before_the_last_rows_are_written_is_found(runtime, npy, target, monkeypatch):
    before_block(monkeypatch, lambda number: os.utime(npy, ns=(0, 0)) if number == 1 else None)
    with pytest.raises(FastflowError, match="was changed while it was read"):
        transform(runtime, npy, target)
    assert not target.exists()


def test_info_and_verify_describe_a_model_of_vectors(vector_model):
    info = run("info", vector_model)
    assert (info.exit_code, json.loads(info.stdout)["takes"]) == (0, "vectors")
    checked = run("verify", vector_model)
    assert checked.exit_code == 0
    assert "2 files match their sha256" in checked.stdout
