"""fastflow-train from the command line: what it makes and says."""

import json
import re
import shutil

import numpy as np
import pytest
from builders import FAMILIES, hub_cache
from click.testing import CliRunner
from commands import make_train
from places import ROOT
from tolerances import EMBEDDING

from fastflow import Runtime
from fastflow.cli import main as fastflow_main
from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import evaluate, find_sets
from fastflow.model.artifact import verify
from fastflow.train.cli import main
from fastflow.train.methods.against import fit_named
from fastflow.train.methods.chain import Fitted
from fastflow.train.ship import summary as report


@pytest.fixture
def train(bert, corpus, tmp_path):
    return make_train(bert, corpus, tmp_path)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, sentences):
    directory = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        rows = [f"{i % 3}\t{rng.uniform(0, 5):.1f}\t{sentences[i]}\t{sentences[-i - 1]}" for i in range(30)]
        (directory / f"{name}.tsv").write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n")
    return directory


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_end_to_end(train, encoders, tmp_path, sentences, family):
    result = train(encoder=encoders(family))
    assert (result.exit_code, verify(tmp_path / "m")[0][:1].isdigit()) == (0, True)
    numpy, pytorch = (
        Runtime(tmp_path / "m", backend=b).encode(sentences, normalize_embeddings=True) for b in ("reference", "torch")
    )
    assert np.isfinite(numpy).all()
    assert numpy.std(axis=0).min() > 1e-3
    assert np.abs(numpy - pytorch).max() <= 2 * EMBEDDING


def test_what_a_run_says(train, tmp_path):
    result = train()
    assert result.exit_code == 0
    rows = [line[:34].strip() for line in result.stdout.splitlines()]
    names = [
        "bits per dimension: Gaussian, flow",
        "mean cosine of random pairs",
        "IsoScore",
        "largest singular value's share",
    ]
    names.append("separability of dropout views")
    assert rows == ["", *names]
    assert re.split(r" {2,}", result.stdout.splitlines()[0].strip()) == ["weighted pooling", "calibrated"]
    assert "corpus: 256 distinct texts; encoder: 32 dimensions, weighted masked mean of layers 1 and 3" in result.stderr
    assert (
        "flow: 4 steps of 64 texts; embeddings are continuous, so negative bits per dimension are in order"
        in result.stderr
    )
    assert f"fingerprint {Runtime(tmp_path / 'm').fingerprint[:16]}" in result.stderr
    assert "WARNING" not in result.stderr
    before, after = (float(cell) for cell in result.stdout.splitlines()[2].split()[-2:])
    assert abs(after) < before
    card = (tmp_path / "m" / "README.md").read_text()
    for part in (
        "| encoder |",
        "corpus.txt: 256 distinct texts",
        "flow(2x3, width 32, additive, reversal)",
        "IsoScore",
        "licence",
    ):
        assert part in card
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("m")] == ["m"]


def test_worse_isotropy_is_said_loudly(train):
    result = train("--init", "glorot", "--lr", "1e-9", "--epochs", "0.01", "--stop", "budget")
    assert result.exit_code == 0
    assert "WARNING: calibrated embeddings are LESS isotropic than the pooled ones" in result.stderr
    assert "WARNING: the flow fits the corpus WORSE than a plain Gaussian" in result.stderr
    assert "WARNING" not in result.stdout


def test_a_kept_mean_is_no_loss_of_isotropy():
    """Texts get more alike when what they differ in most goes, and spread more evenly about their mean."""
    x = np.random.default_rng(0).normal(size=(500, 16)) * np.r_[9, np.ones(15)] + np.r_[0, np.full(15, 2.0)]
    (stage,) = fit_named("components:1", x)
    measures = report.before_and_after(Fitted([stage]), x)
    before, after = measures["isotropy"]["before"], measures["isotropy"]["after"]
    assert after["mean_cosine"] > before["mean_cosine"] + 0.2
    assert after["isoscore"] > before["isoscore"] + 0.2
    assert report.warnings(measures, [stage]) == []
    assert "LESS isotropic" in report.warnings(measures, fit_named("nullspace:1", x))[0]


def test_evaluation_before_and_after(train, pairs, tmp_path, model):
    result = train("--eval", pairs, "--method", "standardize")
    assert result.exit_code == 0
    assert re.split(r" {2,}", result.stdout.splitlines()[0].strip()) == [
        "raw pooling",
        "weighted pooling",
        "calibrated",
    ]
    lines = {line[:34].strip(): line.split()[-3:] for line in result.stdout.splitlines()[1:]}
    assert [name for name in lines if name.startswith("Spearman")] == [
        f"Spearman {name}, {kind}" for name in ("a", "b", "average of 2") for kind in ("all", "wmean")
    ]
    runtime = Runtime(tmp_path / "m", backend="torch")
    assert train("--method", "none", "--token-weights", "none", "--eval", pairs, out=tmp_path / "raw").exit_code == 0
    raw = Runtime(tmp_path / "raw", backend="torch")
    assert "| measured | raw pooling | calibrated |" in (tmp_path / "raw" / "README.md").read_text()
    for column, encode in enumerate((raw.encode, runtime.pool, runtime.encode)):
        expected = evaluate(encode, find_sets([pairs]))
        for row in expected["rows"]:
            for kind in ("all", "wmean"):
                assert float(lines[f"Spearman {row['set']}, {kind}"][column]) == pytest.approx(row[kind], abs=0.02)
    one = train("--eval", pairs / "a.tsv", out=tmp_path / "one")
    assert "Spearman average of 1, all" in one.stdout
    manifest = json.loads((tmp_path / "m" / "fastflow.json").read_text())
    assert manifest["training"]["spearman"]["before"]["rows"][0]["set"] == "a"
    card = (tmp_path / "m" / "README.md").read_text()
    assert "| measured | raw pooling | weighted pooling | calibrated |" in card
    assert f"| Spearman a, all | {' | '.join(lines['Spearman a, all'])} |" in card


def test_the_mean_cosine_that_rises_is_explained_beneath_the_table(train, tmp_path):
    result = train("--method", "auto")
    before, after = (float(cell) for cell in result.stdout.splitlines()[1].split()[-2:])
    assert after > before
    last = result.stdout.splitlines()[-1]
    assert last.startswith("The mean cosine rises on purpose: components(1) keeps the mean that all texts share")
    assert "IsoScore" in last
    assert last in (tmp_path / "m" / "README.md").read_text()
    other = train("--method", "nullspace:1", out=tmp_path / "other")
    assert "on purpose" not in other.stdout


def test_an_encoder_of_the_hub_is_copied_by_default_and_referenced_on_request(
    bert, corpus, sentences, tmp_path, monkeypatch
):
    hub = hub_cache(tmp_path / "hub", bert, monkeypatch)
    train = make_train("someone/tiny", corpus, tmp_path)
    for name, options in (("copied", []), ("light", ["--reference-encoder"])):
        assert train("--method", "whiten", *options, out=tmp_path / name).exit_code == 0
    cards = [(tmp_path / name / "README.md").read_text() for name in ("copied", "light")]
    assert "a copy of someone/tiny of the Hugging Face Hub, revision 0123456789abcdef" in cards[0]
    assert "This directory holds no encoder" not in cards[0]
    assert "someone/tiny of the Hugging Face Hub, revision 0123456789abcdef" in cards[1]
    assert "This directory holds no encoder" in cards[1]
    assert f"hf download someone/tiny --revision {hub.name}\n" in cards[1]
    light = Runtime(tmp_path / "light", backend="reference").encode(sentences[:4])
    shutil.rmtree(hub)
    assert verify(tmp_path / "copied")
    assert np.array_equal(Runtime(tmp_path / "copied", backend="reference").encode(sentences[:4]), light)
    with pytest.raises(FastflowError, match="someone/tiny"):
        Runtime(tmp_path / "light")


def test_training_on_a_directory_never_asks_the_hub(train, tmp_path, monkeypatch, model):
    def asked(*unused, **options):
        pytest.fail("asked the Hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", asked)
    assert train("--method", "whiten").exit_code == 0
    assert train("--method", "whiten", encoder=model, out=tmp_path / "again").exit_code == 0
    refused = train("--reference-encoder", out=tmp_path / "light")
    assert (refused.exit_code, "is for an encoder from the Hub, and" in refused.stderr) == (2, True)
    assert not (tmp_path / "light").exists()


def test_the_cache_command_names_what_was_trained_on(train, tmp_path):
    assert train("--method", "whiten").exit_code == 0
    listed = CliRunner().invoke(fastflow_main, ["cache", str(tmp_path / "cache")])
    assert "finished            256 texts of corpus.txt, encoder " in listed.stdout


def test_help_names_files_of_the_checkout():
    shown = CliRunner().invoke(main, ["--help"]).stdout
    named = re.findall(r"\S+\.(?:txt|tsv|npy)\b", shown)
    assert "examples/novels.txt" in named
    assert all((ROOT / name).is_file() or name.split(".")[0].isupper() for name in named), named


@pytest.mark.parametrize(("cosine", "said"), [(0.5, 0), (0.21, 0), (0.19, 1), (-0.05, 1)])
def test_what_is_spread_out_already_is_warned_of(cosine, said):
    """An encoder tuned for similarity gains nothing here and may lose, which without scores nothing else tells."""
    isotropy = {when: {"isoscore": 0.5, "mean_cosine": cosine} for when in ("before", "after")}
    found = report.warnings({"isotropy": isotropy}, [])
    assert len(found) == said
    assert all("compare --token-weights none --method none" in warning for warning in found)


@pytest.mark.parametrize(
    ("raw", "before", "after", "said"),
    [
        (None, 50.0, 51.0, []),
        (None, 50.0, 49.0, ["Spearman FELL from 50.0 to 49.0; this calibration"]),
        (40.0, 50.0, 49.0, ["Spearman FELL from 50.0 to 49.0; this calibration"]),
        (52.0, 50.0, 51.0, ["Spearman is 51.0, and 52.0 with equal token weights and no calibration; use"]),
        (52.0, 51.0, 50.0, ["Spearman FELL from 51.0 to 50.0", "Spearman is 50.0, and 52.0 with"]),
    ],
)
def test_a_model_worse_than_what_it_was_made_of_is_said_so(raw, before, after, said):
    scores = {"raw": raw, "before": before, "after": after}
    measures = {"isotropy": {when: {"isoscore": 0.5, "mean_cosine": 0.5} for when in ("before", "after")}}
    measures["spearman"] = {when: {"average": {"all": score}} for when, score in scores.items() if score is not None}
    found = report.warnings(measures, [])
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))


@pytest.mark.parametrize("method", ["whiten:16", "nullspace:2,standardize", "none", "auto"])
def test_a_streamed_corpus_gives_the_model_of_one_held_in_memory(train, tmp_path, monkeypatch, sentences, method):
    monkeypatch.setattr("fastflow.train.data.moments.BLOCK", 60)
    assert train("--method", method, out=tmp_path / "held").exit_code == 0
    result = train("--method", method, "--stream", out=tmp_path / "streamed")
    assert result.exit_code == 0
    assert "corpus: 256 texts, read once; 256 of them kept to measure on" in result.stderr
    assert "corpus.txt: 256 texts, read once" in (tmp_path / "streamed" / "README.md").read_text()
    held, streamed = (
        Runtime(tmp_path / name, backend="reference").encode(sentences, normalize_embeddings=True)
        for name in ("held", "streamed")
    )
    assert np.abs(held - streamed).max() <= EMBEDDING


def test_paragraphs_are_warned_of_and_can_be_cut(train, tmp_path, sentences):
    path = tmp_path / "paragraphs.txt"
    path.write_text("\n".join(" ".join(sentences[i : i + 6]) for i in range(0, 252, 6)) + "\n")
    whole = train("--method", "standardize", source=path, out=tmp_path / "whole")
    assert "WARNING: these texts have 5" in whole.stderr
    for weights, told in (("sif", False), ("none", True)):
        tried = train("--method", "auto", "--token-weights", weights, "--dry-run", source=path, out=tmp_path / weights)
        assert ("WARNING: these texts have 5" in tried.stderr) == told
    cut = train("--method", "standardize", "--sentences", source=path, out=tmp_path / "cut")
    assert "corpus: 252 distinct texts" in cut.stderr
    assert "words on average" not in cut.stderr


def test_dry_run_writes_nothing(train, tmp_path):
    result = train("--dry-run", "--log-dir", tmp_path / "logs")
    assert result.exit_code == 0
    assert "dry run: would fit flow and write" in result.stderr
    assert list(tmp_path.iterdir()) == []
    assert result.stdout == ""


def test_log_directory_holds_scalars(train, tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    assert train("--log-dir", tmp_path / "logs").exit_code == 0
    (path,) = (tmp_path / "logs").iterdir()
    scalars = [(v.tag, event.step) for event in EventFileLoader(str(path)).Load() for v in event.summary.value]
    every = [(tag, step) for tag in ("bits_per_dimension", "gradient_norm") for step in (1, 2, 3, 4)]
    assert sorted(scalars) == [*every, ("separability", 0), ("separability", 4)]


def test_identical_runs_give_identical_models(train, tmp_path):
    for name in ("m", "again"):
        assert train(out=tmp_path / name, source="-", stdin="\n".join(f"a dog {i}" for i in range(70))).exit_code == 0
    files = [
        {p.relative_to(d): p.read_bytes() for p in d.rglob("*") if p.is_file()}
        for d in (tmp_path / "m", tmp_path / "again")
    ]
    assert files[0] == files[1]
    assert (
        train(
            "--seed", "1", out=tmp_path / "other", source="-", stdin="\n".join(f"a dog {i}" for i in range(70))
        ).exit_code
        == 0
    )
    marks = [Runtime(tmp_path / name).fingerprint for name in ("m", "again", "other")]
    assert marks[0] == marks[1] != marks[2]


@pytest.mark.parametrize("extra", [[], ["--encoder-dropout"]])
def test_resume_after_an_interruption(train, tmp_path, monkeypatch, extra):
    from fastflow.train.methods.scalars import Scalars

    options = ["--save-steps", "3", "--batch-size", "32", *extra]
    assert train(*options, out=tmp_path / "whole").exit_code == 0

    def stop(self, step, values):
        if step == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Scalars, "_log", stop)
        stopped = train(*options)
        assert stopped.exit_code == 130
        assert "checkpoints of the flow are in" in stopped.stderr
    assert (tmp_path / "m.training" / "stage-0.safetensors").is_file()
    assert not (tmp_path / "m").exists()
    refused = train(*options, "--resume", "--lr", "5e-4")
    assert (refused.exit_code, "another corpus, encoder or settings" in refused.stderr) == (2, True)
    assert train(*options, "--resume").exit_code == 0
    assert Runtime(tmp_path / "m").fingerprint == Runtime(tmp_path / "whole").fingerprint
    assert not (tmp_path / "m.training").exists()


def mini(shared_data, tmp_path, *arguments):
    """The training record of a flow on the project's small encoder, every other setting at its default."""
    encoder = shared_data / "models" / "mini-mlm-uncased"
    where = ["--method", "flow", "--encoder", encoder, "--out", tmp_path / "m", "--cache", tmp_path]
    result = CliRunner().invoke(main, [str(a) for a in (*arguments, *where)])
    assert result.exit_code == 0, result.output
    assert "WARNING" not in result.stderr
    training = json.loads((tmp_path / "m" / "fastflow.json").read_text())["training"]
    before, after = training["isotropy"]["before"], training["isotropy"]["after"]
    assert after["isoscore"] > before["isoscore"] + 0.05
    assert abs(after["mean_cosine"]) < abs(before["mean_cosine"]) / 2
    return training


@pytest.mark.data
def test_a_real_corpus_ends_more_isotropic(shared_data, tmp_path):
    training = mini(shared_data, tmp_path, shared_data / "corpora" / "nli-snli-dev-test.txt", "--sample", 3000)
    assert training["texts"] == 3000
    assert training["bits_per_dimension"][0]["flow"] < training["bits_per_dimension"][0]["gaussian"]


@pytest.mark.data
def test_a_flow_fitted_to_the_target_sentences_beats_raw_pooling(shared_data, tmp_path):
    """The paper's target regime on STS16: one epoch over its own sentences, labels unused, seed 0, tokens alike."""
    target = shared_data / "sts" / "STS16.tsv"
    training = mini(shared_data, tmp_path, target, "--eval", target, "--token-weights", "none")
    spearman = {when: training["spearman"][when]["average"]["all"] for when in ("before", "after")}
    assert spearman["after"] > spearman["before"] + 1


def test_a_corpus_in_a_table_without_a_header(train, tmp_path, sentences):
    (tmp_path / "corpus.dat").write_text("".join(f"{i};{text}\n" for i, text in enumerate(sentences)))
    options = ("--format", "csv", "--no-header", "--delimiter", ";", "--text-field", "2", "--dry-run")
    result = train(*options, source=tmp_path / "corpus.dat")
    assert result.exit_code == 0, result.stderr
    assert "corpus: 256 distinct texts" in result.stderr


def test_a_corpus_of_another_language_is_warned_of(train, tmp_path):
    (tmp_path / "corpus.txt").write_text("".join(f"Die Bundesregierung beschloss Erhöhung {i}.\n" for i in range(64)))
    result = train("--dry-run", source=tmp_path / "corpus.txt", encoder="default")
    assert result.exit_code == 0, result.stderr
    assert "WARNING: words fall into " in result.stderr
