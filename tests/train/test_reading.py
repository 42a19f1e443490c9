"""The corpus of a fit: streamed or in memory the same model, what is warned of, and nothing written by a dry run."""

import numpy as np
import pytest

from fastflow import Runtime

from support.tolerances import EMBEDDING


@pytest.mark.slow
@pytest.mark.parametrize("method", ["whiten:16", "nullspace:2,standardize", "none", "whiten,recolour"])
def test_a_streamed_corpus_gives_the_model_of_one_held_in_memory(train, tmp_path, monkeypatch, sentences, method):
    monkeypatch.setattr("fastflow.train.data.moments.BLOCK", 60)
    options = ("--method", method, "--stop", "budget")
    assert train(*options, out=tmp_path / "held").exit_code == 0
    result = train(*options, "--stream", out=tmp_path / "streamed")
    assert (": none, fingerprint" in result.stderr) == (method == "none")
    assert result.exit_code == 0
    assert "corpus: 256 texts, read once; 256 of them kept to measure on" in result.stderr
    assert "corpus.txt: 256 texts, read once" in (tmp_path / "streamed" / "README.md").read_text()
    held, streamed = (
        Runtime(tmp_path / name, backend="reference").encode(sentences, normalize_embeddings=True)
        for name in ("held", "streamed")
    )
    assert np.abs(held - streamed).max() <= EMBEDDING


@pytest.mark.slow
def test_paragraphs_are_warned_of_and_can_be_cut(train, tmp_path, sentences):
    path = tmp_path / "paragraphs.txt"
    path.write_text("\n".join(" ".join(sentences[i : i + 6]) for i in range(0, 252, 6)) + "\n")
    alike = ("--method", "standardize", "--token-weights", "none")
    whole = train(*alike, source=path, out=tmp_path / "whole")
    assert "WARNING: these texts have 5" in whole.stderr
    for options, told in (((), False), (("--token-weights", "none"), True), (("--pooling", "cls"), True)):
        for method in ("standardize", "flow"):
            tried = train("--method", method, *options, "--batch-size", 32, "--dry-run", source=path)
            assert tried.exit_code == 0, tried.stderr
            assert ("WARNING: these texts have 5" in tried.stderr) == told
    cut = train(*alike, "--sentences", source=path, out=tmp_path / "cut")
    assert "corpus: 252 distinct texts" in cut.stderr
    assert "words on average" not in cut.stderr


def test_dry_run_writes_nothing(train, tmp_path):
    result = train("--dry-run", "--log-dir", tmp_path / "logs")
    assert result.exit_code == 0
    assert "dry run: would fit flow and write" in result.stderr
    assert list(tmp_path.iterdir()) == []
    assert result.stdout == ""
