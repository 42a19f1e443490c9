"""The body of fastflow-train and its corpus: what it prints, warns of and leaves."""

import warnings

import numpy as np
import pytest

import fastflow
from fastflow import Runtime
from fastflow.train.command import checkpoints_of
from fastflow.train.fits.fitting import Fitting

from support.tolerances import EMBEDDING

FLOW = ("--epochs", "2", "--batch-size", "32", "--levels", "1", "--depth", "1", "--width", "4")


@pytest.mark.slow
def test_checkpoints_go_when_the_model_is_whole(train, tmp_path):
    done = train(*FLOW, "--save-steps", "2", "--stop", "budget")
    assert done.exit_code == 0, done.stderr
    assert not checkpoints_of(tmp_path / "m").exists()
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{tmp_path / 'm'}: flow(1x1, width 4, additive, reversal) -> recolour(spectrum 0.5, ")


def test_an_interruption_says_how_to_continue(train, tmp_path, monkeypatch):
    assert checkpoints_of(tmp_path / "m.v2") == tmp_path / "m.v2.training", "under the whole name of the model"

    def stopped(*unused, **options):
        checkpoints_of(tmp_path / "m").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(Fitting, "run", stopped)
    done = train(*FLOW)
    assert done.exit_code == 130
    place = checkpoints_of(tmp_path / "m")
    *_, fault, hint = done.stderr.splitlines()
    assert fault == "fastflow: interrupted"
    assert f"checkpoints of the flow are in {place}; the same command with --resume continues" in hint


@pytest.mark.slow
def test_figures_go_to_standard_output_and_reasons_to_standard_error(train):
    done = train("--method", "auto", "--token-weights", "none")
    assert done.exit_code == 0, done.stderr
    assert "IsoScore" in done.stdout
    assert "IsoScore" not in done.stderr.replace("IsoScore, which", "")
    assert "fingerprint" not in done.stdout


@pytest.mark.parametrize("method", ["flow", "standardize"])
def test_a_dry_run_says_what_it_would_do_and_writes_nothing(train, tmp_path, method):
    done = train("--method", method, "--dry-run", "--log-dir", tmp_path / "logs")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1] == f"dry run: would fit {method} and write {tmp_path / 'm'}"
    assert list(tmp_path.iterdir()) == []


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
    assert "WARNING: these texts are paragraphs, of 5" in whole.stderr
    for options, told in (((), False), (("--token-weights", "none"), True), (("--pooling", "cls"), True)):
        for method in ("standardize", "flow"):
            tried = train("--method", method, *options, "--batch-size", 32, "--dry-run", source=path)
            assert tried.exit_code == 0, tried.stderr
            assert ("WARNING: these texts are paragraphs, of 5" in tried.stderr) == told
    cut = train(*alike, "--sentences", source=path, out=tmp_path / "cut")
    assert "corpus: 252 distinct texts" in cut.stderr
    assert "these texts are paragraphs" not in cut.stderr
    usual = train("--dry-run", "--batch-size", 32, source=path)
    assert "corpus: these texts are paragraphs, of 5" in usual.stderr
    assert "WARNING" not in usual.stderr


def fitted(sentences, bert, **options):
    return fastflow.fit(sentences, bert, "flow", spectrum=0.5, demoted=0, background=0, **options)


@pytest.mark.slow
def test_nothing_is_said_and_nothing_written_unless_asked(bert, sentences, empty, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fitted(sentences, bert).report["warnings"] == []
    assert capfd.readouterr() == ("", "")
    assert list(empty.iterdir()) == []


@pytest.mark.slow
def test_lines_go_where_the_caller_wants_them(train, bert, sentences, capfd):
    said = train("--method", "flow", "--spectrum", 0.5, "--demoted", 0).stderr.splitlines()
    lines = []
    fitted(sentences, bert, progress=lines.append)
    assert capfd.readouterr() == ("", "")
    assert lines == said[:2]
    fitted(sentences, bert, progress=True)
    assert [line for line in capfd.readouterr().err.splitlines() if line in lines] == lines
