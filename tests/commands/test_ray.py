"""fastflow embed --ray: options that do not go together with it are refused by name, before Ray is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fastflow.commands.ray import url_of
from fastflow.errors import missing_extra

from support.commands import assert_one_sentence, run


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--resume",),
            "--resume does not work with --ray: leave it out, or leave out --ray and use --shard I/N --resume",
        ),
        (("--shard", "1/2"), "--shard does not work with --ray: Ray divides the rows itself"),
        (("--fit",), "--fit does not work with --ray: fit once with fastflow-train, then give -m MODEL"),
        (("--dedupe",), "--dedupe does not work with --ray: leave out one of them"),
        (("--log-prob",), "--log-prob does not work with --ray"),
        (("--batch-tokens", 9), "--batch-tokens does not work with --ray"),
        (("--truncate", "error"), "--truncate does not work with --ray"),
        (("--errors", "replace"), "--errors does not work with --ray"),
        (("--save-model", "m"), "--save-model does not work with --ray"),
        (("--device", "cuda"), "--ray computes on CPUs: leave out --device cuda"),
        (("--format", "jsonl"), "--ray reads Parquet, not jsonl"),
    ],
)
def test_options_that_are_refused(options, message):
    assert_one_sentence(run("embed", "in.parquet", "--ray", "local", "-o", "out", *options), 2, message)


def test_parquet_and_a_folder_are_needed():
    message = "--ray reads Parquet, and in.txt is not: leave out --ray, or convert the input"
    assert_one_sentence(run("embed", "in.txt", "--ray", "local", "-o", "out"), 2, message)
    assert_one_sentence(run("embed", "in.parquet", "--ray", "local"), 2, "--ray writes a folder of Parquet files: -o")


def test_without_ray_the_command_to_install_it_is_said():
    result = run("embed", "in.parquet", "--ray", "local", "-o", "out")
    assert_one_sentence(result, 1, str(missing_extra("ray", "ray.data", "fastflow embed --ray")))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("-o", "--ray needs ADDRESS or local, and '-o' is neither: give HOST:PORT, auto or local"),
        ("somewhere", "and 'somewhere' is neither: give HOST:PORT, auto or local"),
        ("ray://127.0.0.1:10001", "Ray Client is not supported: give HOST:6379, or start the command on the cluster"),
    ],
)
def test_an_address_is_host_and_port(address, message):
    assert_one_sentence(run("embed", "in.parquet", "--ray", address, "out"), 2, message)


@pytest.mark.parametrize("name", ["s3://bucket/folder", "gs://b/f/g", "file:///tmp/f", "/tmp/f", "out", "a:b/c"])
def test_a_url_comes_back_from_a_path(name):
    assert url_of(Path(name)) == name
