"""verify of a directory of Sentence Transformers."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from fastflow.cli import main
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model, verify

from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling


@pytest.fixture
def saved(tmp_path, bert):
    return make_directory(tmp_path / "m", bert, [pooling("cls"), dense(8), NORMALIZE])


def test_what_was_checked_is_said(saved):
    assert verify(saved) == [
        "10 files of Sentence Transformers: every setting is known",
        "modules Pooling (cls), Dense (32 to 8, tanh), Normalize: weights are whole and finite",
        f"fingerprint {load_model(saved).fingerprint}",
    ]
    shown = CliRunner().invoke(main, ["verify", str(saved)])
    assert (shown.exit_code, shown.stdout.splitlines()) == (0, verify(saved))


@pytest.mark.parametrize(
    ("file", "tensor"),
    [("model.safetensors", "encoder.layer.2.output.dense.bias"), ("2_Dense/model.safetensors", "linear.weight")],
)
def test_a_weight_that_is_not_finite_is_named(saved, file, tensor):
    arrays = load_file(saved / file)
    arrays[tensor] = np.full_like(arrays[tensor], np.nan)
    save_file(arrays, saved / file)
    shown = CliRunner().invoke(main, ["verify", str(saved)])
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert f"tensor {tensor} holds NaN" in shown.stderr


def test_a_tokenizer_that_is_missing(saved):
    (saved / "tokenizer.json").unlink()
    with pytest.raises(FastflowError, match="has no tokenizer"):
        verify(saved)
