"""fastflow-train: what it makes, says and refuses."""

import json
import re
import shutil
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fastflow
from fastflow import Runtime
from fastflow.cli import main as fastflow_main
from fastflow.commands.train import train as main
from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.texts import format_of
from fastflow.model.hashing import encoder_hash
from fastflow.model.verify import verify
from fastflow.train.command import checkpoints_of
from fastflow.train.fits.fitting import Fitting

from support.builders import FAMILIES, hub_cache
from support.commands import assert_one_sentence, make_train
from support.places import ROOT
from support.tolerances import EMBEDDING

CALIBRATED = "flow(2x3, width 32, additive, reversal) -> recolour(spectrum 0.5, mean share 0.1, 0 demoted)"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_end_to_end(train, encoders, tmp_path, sentences, family):
    result = train("--stop", "budget", encoder=encoders(family))
    assert CALIBRATED in result.stderr
    assert (result.exit_code, verify(tmp_path / "m")[0][:1].isdigit()) == (0, True)
    numpy, pytorch = (
        Runtime(tmp_path / "m", backend=b).encode(sentences, normalize_embeddings=True) for b in ("reference", "torch")
    )
    assert np.isfinite(numpy).all()
    spread = numpy.std(axis=0)
    assert ((spread > 1e-3) | (spread == 0)).all()  # means of word embeddings lack a direction or, in ELECTRA, nine
    assert (spread > 0).sum() >= 23
    assert np.abs(numpy - pytorch).max() <= 2 * EMBEDDING


@pytest.mark.slow
def test_what_a_run_prints(train, tmp_path):
    result = train()
    assert result.exit_code == 0
    head, *rows, verdict = result.stdout.splitlines()
    assert result.output.splitlines()[-1] == verdict  # after all lines on standard error
    assert re.split(r" {2,}", head.strip()) == ["weighted pooling", "calibrated"]
    assert verdict.startswith("Better or worse: unknown, for nothing here measures similarity. Give pairs with human")
    measures = ["bits per dimension: Gaussian, flow", "mean cosine of random pairs", "IsoScore"]
    measures += ["largest singular value's share"]
    assert [line[:34].strip() for line in rows] == measures
    before, after = (float(cell) for cell in rows[1].split()[-2:])
    assert abs(after) < before
    for line in (
        "corpus: 256 distinct texts; encoder: 32 dimensions, weighted masked mean of word embeddings without positions",
        "flow: 4 steps of 64 texts; embeddings are continuous, so negative bits per dimension are in order",
        f"fingerprint {Runtime(tmp_path / 'm').fingerprint[:16]}",
    ):
        assert line in result.stderr
    assert "WARNING" not in result.stderr
    card = (tmp_path / "m" / "README.md").read_text()
    parts = ["| encoder |", "corpus.txt: 256 distinct texts", "IsoScore", "licence", CALIBRATED]
    assert [part for part in parts if part not in card] == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("m")] == ["m"]


@pytest.mark.slow
def test_an_encoder_of_the_hub_is_copied_by_default_and_referenced_on_request(
    bert, corpus, sentences, tmp_path, monkeypatch
):
    """The Hub is a fake of its local cache, and nothing is fetched."""
    hub = hub_cache(tmp_path / "hub", bert, monkeypatch)
    train = make_train("someone/tiny", corpus, tmp_path)
    for name, options in (("copied", []), ("light", ["--reference-encoder"])):
        assert train("--method", "whiten", *options, out=tmp_path / name).exit_code == 0
    copied, light = tmp_path / "copied", tmp_path / "light"
    cards = [(made / "README.md").read_text() for made in (copied, light)]
    assert "a copy of someone/tiny of the Hugging Face Hub, revision 0123456789abcdef" in cards[0]
    assert "This directory holds no encoder" not in cards[0]
    assert "someone/tiny of the Hugging Face Hub, revision 0123456789abcdef" in cards[1]
    assert "This directory holds no encoder" in cards[1]
    assert f"hf download someone/tiny --revision {hub.name}\n" in cards[1]
    encoders = [json.loads((made / "fastflow.json").read_text())["encoder"] for made in (copied, light)]
    marks = [{"sha256": encoder_hash(folder)} for folder in (copied / "0_Transformer", hub)]
    assert encoders == [marks[0], marks[1] | {"hub_id": "someone/tiny", "revision": hub.name}]
    assert not (light / "0_Transformer").exists()
    found = Runtime(light, backend="reference").encode(sentences[:4])
    shutil.rmtree(hub)
    assert verify(copied)
    assert np.array_equal(Runtime(copied, backend="reference").encode(sentences[:4]), found)
    with pytest.raises(FastflowError, match="someone/tiny"):
        Runtime(light)


@pytest.mark.slow
def test_training_on_a_directory_never_asks_the_hub(train, tmp_path, monkeypatch, model):
    def refuse_to_ask(*unused, **options):
        pytest.fail("asked the Hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse_to_ask)
    assert train("--method", "whiten").exit_code == 0
    assert train("--method", "whiten", encoder=model, out=tmp_path / "again").exit_code == 0
    refused = train("--reference-encoder", out=tmp_path / "light")
    assert (refused.exit_code, "is for an encoder from the Hub, and" in refused.stderr) == (2, True)
    assert not (tmp_path / "light").exists()


@pytest.mark.slow
def test_the_cache_command_names_what_was_trained_on(train, tmp_path):
    assert train("--method", "whiten").exit_code == 0
    listed = CliRunner().invoke(fastflow_main, ["cache", str(tmp_path / "cache")])
    assert "finished            256 texts of corpus.txt, encoder " in listed.stdout


def test_help_names_files_of_the_checkout():
    shown = CliRunner().invoke(main, ["--help"]).stdout
    named = re.findall(r"\S+\.(?:txt|tsv|npy)\b", shown)
    assert "examples/novels.txt" in named
    assert all((ROOT / name).is_file() or name.split(".")[0].isupper() for name in named), named


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("latent", [(), pytest.param(("--latent",), marks=pytest.mark.whole)])
def test_a_real_corpus_ends_more_isotropic(shared_data, tmp_path, latent):
    """With recolour, token weights leave a mean cosine of 0.1 and nearly the encoder's spectrum."""
    encoder, corpus = shared_data / "models" / "mini-mlm-uncased", shared_data / "corpora" / "nli-snli-dev-test.txt"
    words = [corpus, "--sample", 1500, "--method", "flow", *latent, "--encoder", encoder, "-o", tmp_path / "m"]
    result = CliRunner().invoke(main, [str(word) for word in (*words, "--cache-folder", tmp_path / "cache")])
    assert result.exit_code == 0, result.output
    assert "WARNING" not in result.stderr
    training = json.loads((tmp_path / "m" / "fastflow.json").read_text())["training"]
    assert training["texts"] == 1500
    assert training["bits_per_dimension"][0]["flow"] < training["bits_per_dimension"][0]["gaussian"]
    before, after = training["isotropy"]["before"], training["isotropy"]["after"]
    assert after["isoscore"] > before["isoscore"] + (0.05 if latent else 0.03)
    if latent:
        assert abs(after["mean_cosine"]) < abs(before["mean_cosine"]) / 2
    else:
        assert 0.05 < after["mean_cosine"] < min(0.15, before["mean_cosine"] - 0.05)


def test_a_corpus_in_a_table_without_a_header(train, tmp_path, sentences):
    (tmp_path / "corpus.dat").write_text("".join(f"{i};{text}\n" for i, text in enumerate(sentences)))
    options = ("--format", "csv", "--no-header", "--delimiter", ";", "--text-field", "2", "--dry-run")
    result = train(*options, source=tmp_path / "corpus.dat")
    assert result.exit_code == 0, result.stderr
    assert "corpus: 256 distinct texts" in result.stderr


@pytest.mark.slow
def test_a_corpus_of_another_language_is_warned_of(train, tmp_path):
    (tmp_path / "corpus.txt").write_text("".join(f"Die Bundesregierung beschloss Erhöhung {i}.\n" for i in range(64)))
    result = train("--dry-run", source=tmp_path / "corpus.txt", encoder="default")
    assert result.exit_code == 0, result.stderr
    assert "WARNING: words fall into " in result.stderr


def put(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--method", "pca"], 2, "unknown method 'pca'; use flow, whiten"),
        (["--pooling", "max"], 2, "unknown pooling 'max'; use first-last"),
        (["--method", "whiten:12,flow", "--levels", "3"], 2, "needs a width divisible by 8, and the embeddings have"),
        (["--lr", "1e30"], 1, "training diverged at step 2 of 4"),
        (["--lr", "1e30", "--batch-size", "256", "--stop", "budget"], 1, "the final likelihood is not finite"),
        (["--stream", "--method", "auto", "--sample", "9"], 2, "--stream is for closed forms, such as whiten,recolour"),
        (["--demoted", "32"], 1, "32 of 31 directions cannot be demoted; use a smaller --demoted"),
        (["--eval", __file__], 1, "test_command.py, line 1: the header must be"),
        (["--log-dir", __file__], 1, "cannot be written: File exists"),
        (["--text-field", "body", "--sample", "0"], 2, "0 is not in the range x>=1"),
    ],
)
def test_wrong_options(train, tmp_path, options, code, message):
    result = train(*options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (None, 1, "c.txt cannot be opened: No such file or directory"),
        ("", 1, "c.txt: holds no text"),
        ("one\ntwo\none\n", 2, "the corpus has 2 distinct texts, fewer than one batch of 64"),
    ],
)
def test_bad_corpora(train, tmp_path, content, code, message):
    path = tmp_path / "c.txt"
    if content is not None:
        put(path, content)
    assert_one_sentence(train(source=path), code, message)
    assert_one_sentence(train("--method", "none", source=put(path, "one\none\n")), 1, "a single distinct text")
    assert not (tmp_path / "m").exists()


def test_existing_output_is_kept(train, tmp_path):
    (tmp_path / "m").mkdir()
    put(tmp_path / "m" / "mine", "mine")
    assert_one_sentence(train(), 2, "exists already; remove it or choose another --output")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["mine"]


def test_debug_shows_the_error_itself(bert, corpus, tmp_path):
    arguments = [str(corpus), "--encoder", str(bert), "-o", str(tmp_path / "m"), "--method", "pca", "--debug"]
    assert isinstance(CliRunner().invoke(main, arguments).exception, UsageError)


def test_how_to_install_is_written_in_one_place():
    assert not [path.name for path in (ROOT / "train").glob("*.py") if "pip install" in path.read_text()]


@pytest.mark.parametrize("name", ["c.npz", "c.docx"])
def test_a_corpus_of_another_kind_is_refused_as_embed_refuses_it(train, tmp_path, name):
    path = put(tmp_path / name, b"\x93NUMPY")
    with pytest.raises(UsageError) as refusal:
        format_of(str(path))
    assert_one_sentence(train(source=path), 2, f"fastflow: {refusal.value}")
    assert not (tmp_path / "m").exists()


def test_what_is_not_there_is_named_with_its_remedy(train, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_one_sentence(train("--device", "cuda"), 1, "PyTorch finds no CUDA device")


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

    def stop_run(*unused, **options):
        checkpoints_of(tmp_path / "m").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(Fitting, "run", stop_run)
    done = train(*FLOW)
    assert done.exit_code == 130
    place = checkpoints_of(tmp_path / "m")
    *_, fault, hint = done.stderr.splitlines()
    assert fault == "fastflow: interrupted"
    assert f"checkpoints of the flow are in {place}; the same command with --resume continues" in hint


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


def fit_flow_of(sentences, bert, **options):
    return fastflow.fit(sentences, bert, "flow", spectrum=0.5, demoted=0, background=0, **options)


@pytest.mark.slow
def test_nothing_is_said_and_nothing_written_unless_asked(bert, sentences, empty, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_flow_of(sentences, bert).report["warnings"] == []
    assert capfd.readouterr() == ("", "")
    assert list(empty.iterdir()) == []


@pytest.mark.slow
def test_lines_go_where_the_caller_wants_them(train, bert, sentences, capfd):
    said = train("--method", "flow", "--spectrum", 0.5, "--demoted", 0).stderr.splitlines()
    lines = []
    fit_flow_of(sentences, bert, progress=lines.append)
    assert capfd.readouterr() == ("", "")
    assert lines == said[:2]
    fit_flow_of(sentences, bert, progress=True)
    assert [line for line in capfd.readouterr().err.splitlines() if line in lines] == lines
