"""fastflow-train from the command line: what it makes and says."""

import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from fastflow import Runtime
from fastflow.cli import main as fastflow_main
from fastflow.commands.train import train as main
from fastflow.errors import FastflowError
from fastflow.model.artifact import verify
from fastflow.model.hashing import encoder_hash

from support.builders import FAMILIES, hub_cache
from support.commands import make_train
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
    def asked(*unused, **options):
        pytest.fail("asked the Hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", asked)
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of embeddings for the tests that train on real text."""
    return tmp_path_factory.mktemp("cache")


def mini(shared_data, tmp_path, cache, *arguments):
    """The training record of a flow on the project's small encoder, every other setting at its default.

    With recolour after it, token weights leave a mean cosine of 0.2 and nearly the encoder's spectrum; without both, a
    flow makes embeddings isotropic.
    """
    encoder = shared_data / "models" / "mini-mlm-uncased"
    where = ["--method", "flow", "--encoder", encoder, "-o", tmp_path / "m", "--cache-folder", cache]
    result = CliRunner().invoke(main, [str(a) for a in (*arguments, *where)])
    assert result.exit_code == 0, result.output
    assert "WARNING" not in result.stderr
    training = json.loads((tmp_path / "m" / "fastflow.json").read_text())["training"]
    before, after = training["isotropy"]["before"], training["isotropy"]["after"]
    if {"--latent", "none"} & set(arguments):
        assert after["isoscore"] > before["isoscore"] + 0.05
        assert abs(after["mean_cosine"]) < abs(before["mean_cosine"]) / 2
    else:
        assert after["isoscore"] > before["isoscore"] + 0.03
        assert 0.05 < after["mean_cosine"] < min(0.15, before["mean_cosine"] - 0.05)
    return training


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("latent", [(), pytest.param(("--latent",), marks=pytest.mark.whole)])
def test_a_real_corpus_ends_more_isotropic(shared_data, tmp_path, cache, latent):
    corpus = shared_data / "corpora" / "nli-snli-dev-test.txt"
    training = mini(shared_data, tmp_path, cache, corpus, "--sample", 1500, *latent)
    assert training["texts"] == 1500
    assert training["bits_per_dimension"][0]["flow"] < training["bits_per_dimension"][0]["gaussian"]


@pytest.mark.data
@pytest.mark.whole
def test_a_flow_fitted_to_the_target_sentences_beats_raw_pooling(shared_data, tmp_path, cache):
    """The paper's target regime on STS16: one epoch on its own sentences, no labels, seed 0, equal token weights."""
    target = shared_data / "sts" / "STS16.tsv"
    training = mini(shared_data, tmp_path, cache, target, "--eval", target, "--token-weights", "none")
    spearman = {when: training["spearman"][when]["average"]["all"] for when in ("before", "after")}
    assert spearman["after"] > spearman["before"] + 1


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
