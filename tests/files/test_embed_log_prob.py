"""``fastflow embed --log-prob`` below its command line, and the warning about texts unlike the fitted corpus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.files import embed as module
from fastflow.files.embed import embed_file
from fastflow.files.read.records import Layout
from fastflow.files.run import Run, Settings
from fastflow.model.manifest import Likelihood

from support.builders import make_sentences
from support.gpu_standin import use_standin
from support.triton_processes import NEEDS


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


@pytest.fixture
def target(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out"


def knowing(model, log_prob: float, **options) -> Runtime:
    """A Runtime whose model records that one text in a hundred of its corpus is below ``log_prob``."""
    rt = Runtime(model, **options)
    rt.session.model = replace(rt.session.model, likelihood=Likelihood(log_prob, 0.01))
    return rt


SAID = "of these texts are unlike the corpus the model was fitted on; consider --fit"


@pytest.mark.slow
def test_embed_says_once_that_texts_are_unlike(model, runtime, tmp_path, target, monkeypatch, capsys):
    monkeypatch.setattr(module, "WINDOW", 50)
    lines = make_sentences(256, 5)
    (tmp_path / "in.txt").write_text("\n\n".join(lines))
    log_probs, source = runtime.log_prob(lines), str(tmp_path / "in.txt")
    half, plain = float(np.median(log_probs)), target.with_suffix(".npy")
    embed_file(knowing(model, half), source, plain, Settings())
    assert capsys.readouterr().err.count(f"fastflow: 50% {SAID}") == 1
    assert np.array_equal(np.load(plain)[::2], runtime.encode(lines))
    for options in ({"quiet": True}, {"judge": False}):
        embed_file(knowing(model, half), source, plain, Settings(), Run(**options))
        assert SAID not in capsys.readouterr().err
    embed_file(knowing(model, float(log_probs.min())), source, plain, Settings())
    embed_file(runtime, source, plain, Settings())
    assert SAID not in capsys.readouterr().err
    embed_file(knowing(model, half), source, target.with_suffix(".jsonl"), Settings(log_prob=True))
    assert capsys.readouterr().err.count(f"50% {SAID}") == 1
    embed_file(knowing(model, half), source, target.with_suffix(".jsonl"), Settings(Layout("txt")))
    assert "log_prob" not in target.with_suffix(".jsonl").read_text()


@pytest.mark.slow
@NEEDS
def test_where_a_device_overlaps_only_the_first_window_is_judged(model, runtime, tmp_path, target, monkeypatch, capsys):
    use_standin(monkeypatch)
    monkeypatch.setattr(module, "WINDOW", 200)
    lines = make_sentences(256, 5)
    (tmp_path / "in.txt").write_text("\n".join(lines))
    share = np.mean(runtime.log_prob(lines[:200]) < (half := float(np.median(runtime.log_prob(lines)))))
    opened, plain = knowing(model, half, backend="triton"), target.with_suffix(".npy")
    embed_file(opened, str(tmp_path / "in.txt"), plain, Settings())
    assert f"fastflow: {share:.0%} {SAID}" in capsys.readouterr().err
    expected = Runtime(model, backend="triton").encode(lines)  # the stand-in's products round by the rows beside them
    np.testing.assert_allclose(np.load(plain), expected, rtol=1e-5, atol=1e-6)
