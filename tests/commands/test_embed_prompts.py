"""fastflow embed with the prompts of a model."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow.cli import main

from support.sentence_dirs import NORMALIZE, expected, make_directory, pooling

TEXTS = ["the dog sings", "a cat", "seven rivers"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, bert):
    settings = {"prompts": {"query": "the old ", "title": "a red "}, "default_prompt_name": "title"}
    return make_directory(tmp_path_factory.mktemp("st") / "m", bert, [pooling("mean"), NORMALIZE], **settings)


@pytest.fixture
def embed(saved, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")

    def run(*options, model=saved):
        out = tmp_path / "out.npy"
        out.unlink(missing_ok=True)
        words = ["embed", str(tmp_path / "in.txt"), "-m", str(model), "-o", str(out), *options]
        done = CliRunner().invoke(main, words)
        return np.load(out) if out.exists() else None, done

    return run


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ([], "a red "),
        (["--prompt-name", "query"], "the old "),
        (["--prompt-name", "document"], ""),
        (["--prompt", "so "], "so "),
        (["--prompt", ""], ""),
        (["--prompt-name", "query", "--dedupe"], "the old "),
    ],
)
def test_the_prompt_that_applies(embed, saved, options, prompt):
    found, done = embed(*options)
    assert done.exit_code == 0, done.stderr
    assert np.abs(found - expected(saved, TEXTS, prompt)).max() <= 2e-6
