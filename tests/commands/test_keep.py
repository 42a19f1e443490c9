"""fastflow info and verify, as a user calls them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from fastflow import Runtime
from fastflow.cli import main
from fastflow.model.artifact import load_model

from support.commands import run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_info_is_of_the_arithmetic_that_is_asked_for(model, dtype):
    shown = CliRunner().invoke(main, ["info", str(model), "--dtype", dtype])
    found = json.loads(shown.stdout)
    assert found == json.loads(json.dumps(Runtime(model, dtype=dtype).info()))
    assert found["dtype"] == dtype


def test_info_and_verify_commands(model, model_copy):
    shown = CliRunner().invoke(main, ["info", str(model)])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["fingerprint"] == load_model(model).fingerprint
    checked = CliRunner().invoke(main, ["verify", str(model_copy)])
    assert (checked.exit_code, checked.stdout.split("\n")[0]) == (0, "7 files match their sha256")
    (model_copy / "README.md").write_text("mended")
    refused = CliRunner().invoke(main, ["verify", str(model_copy)])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("fastflow: ")
    assert refused.stderr.count("\n") == 1


def test_verify_of_a_plain_encoder(bert, tmp_path):
    done = run("verify", bert)
    assert (done.exit_code, done.stdout.split("\n")[0]) == (0, "a plain encoder: weights are whole and finite")
    shutil.copytree(bert, tmp_path / "bert")
    arrays = load_file(tmp_path / "bert" / "model.safetensors")
    arrays["encoder.layer.1.output.dense.bias"][3] = np.nan
    save_file(arrays, tmp_path / "bert" / "model.safetensors")
    assert "encoder.layer.1.output.dense.bias holds NaN" in run("verify", tmp_path / "bert").stderr


def test_verify_and_cache_have_json(model, tmp_path):
    checked = json.loads(run("verify", model, "--json").stdout)
    assert (checked["model"], checked["checks"][-1]) == (str(model), f"fingerprint {Runtime(model).fingerprint}")
    (tmp_path / "in.txt").write_text("the dog\na cat\n")
    run("embed", tmp_path / "in.txt", "-m", model, "--cache", tmp_path / "c.db", "-o", tmp_path / "o.npy", "-q")
    kept = json.loads(run("cache", tmp_path / "c.db", "--json").stdout)
    assert (kept["vectors"], kept["runs"][0]["vectors"]) == (2, 2)
    assert kept["runs"][0]["settings"]["fingerprint"] == Runtime(model).fingerprint
    (tmp_path / "folder").mkdir()
    listed = json.loads(run("cache", tmp_path / "folder", "--json").stdout)
    assert listed == {"place": str(tmp_path / "folder"), "entries": []}
