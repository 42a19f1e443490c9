"""fastflow-train and fastflow.fit: what they make, say and refuse."""

import json
import pickle
import re
import shutil
import sys
import warnings
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fastflow
from fastflow import Runtime
from fastflow.cli import main as fastflow_main
from fastflow.commands.train import train as main
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.files.read.texts import format_of
from fastflow.model.encoder.weights import encoder_hash
from fastflow.model.verify import verify
from fastflow.train.reporter import flag, name_arguments, name_options

from support.builders import FAMILIES, LAYERED, hub_cache
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
    result = train("--save-steps", "2")
    assert result.exit_code == 0
    head, *rows, verdict = result.stdout.splitlines()
    assert result.output.splitlines()[-1] == verdict  # after all lines on standard error
    assert re.split(r" {2,}", head.strip()) == ["weights only", "calibrated"]
    assert verdict.startswith("Better or worse: unknown, for nothing here measures similarity. Give pairs with human")
    measures = ["bits per dimension: Gaussian, flow", "mean cosine of random pairs", "IsoScore"]
    measures += ["largest singular value's share"]
    assert [line[:34].strip() for line in rows] == measures
    before, after = (float(cell) for cell in rows[1].split()[-2:])
    assert abs(after) < before
    for line in (
        "corpus: 256 distinct texts; encoder: 32 dimensions, weighted masked mean of word embeddings without positions",
        "flow: 4 steps of 64 texts; embeddings are continuous, so negative bits per dimension are in order",
        f"\n{tmp_path / 'm'}: {CALIBRATED}, fingerprint {Runtime(tmp_path / 'm').fingerprint[:16]}",
    ):
        assert line in result.stderr
    assert "WARNING" not in result.stderr
    card = (tmp_path / "m" / "README.md").read_text()
    parts = ["| encoder |", "corpus.txt: 256 distinct texts", "IsoScore", "licence", CALIBRATED]
    assert [part for part in parts if part not in card] == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("m")] == ["m"], "no checkpoints"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"method": "flow", "seed": 3, "epochs": 2},
        {"method": "auto"},
        {"method": "whiten:8,standardize", "stream": True},
        {"method": "nullspace:2", "pooling": "cls", "max_length": 12, "sample": 99, "stop": "budget"},
    ],
)
def test_a_fit_is_the_model_of_the_command(train, bert, sentences, tmp_path, options):
    flags = [(flag(name), *(() if value is True else (value,))) for name, value in options.items()]
    assert train(*chain(*flags)).exit_code == 0
    given = {name: value for name, value in options.items() if value != "auto"}  # which is the default of both
    again = [] if "stream" in options else sentences[:9]  # which count once
    texts = ["", f"  {sentences[0]}\n", *sentences[1:], " \t", *again]
    mark = fastflow.fit((text for text in texts), bert, background=0, **given).save(tmp_path / "fit")
    assert verify(tmp_path / "fit")[-1] == f"fingerprint {mark}"
    manifests = [json.loads((tmp_path / name / "fastflow.json").read_text()) for name in ("fit", "m")]
    for manifest in manifests:
        del manifest["fingerprint"], manifest["files"]["README.md"], manifest["training"]["corpus"]
    assert manifests[0] == manifests[1]
    arrays = [(tmp_path / name / "calibration.safetensors").read_bytes() for name in ("fit", "m")]
    assert arrays[0] == arrays[1]


@pytest.mark.slow
def test_the_report_holds_what_the_command_prints(train, bert, sentences, tmp_path, read_training):
    pairs = tmp_path / "pairs.tsv"
    rows = [f"a\t{i}\t{sentences[i]}\t{sentences[i + 30]}" for i in range(30)]
    pairs.write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n")
    printed = train("--method", "standardize", "--eval", pairs)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit = fastflow.fit(sentences, bert, "standardize", eval=pairs, background=0)  # as ``train``
    report, trained = fit.report, read_training(tmp_path / "m")
    assert json.loads(json.dumps(report)) == report
    assert (report["method"], report["calibration"], report["texts"]) == ("standardize", "standardize", 256)
    assert [stage.kind for stage in fit.stages] == ["standardize"]
    assert report["measures"] == {name: trained[name] for name in ("isotropy", "separability", "spearman")}
    assert (report["choice"], report["reasons"]) == (trained["choice"], trained["reasons"])
    said = [line.removeprefix("WARNING: ") for line in printed.stderr.splitlines() if line.startswith("WARNING")]
    assert report["warnings"] == said
    assert [name_arguments(warning) for warning in report["warnings"]] == [str(warning.message) for warning in warned]
    report["measures"].clear()
    assert fit.report["measures"]


@pytest.mark.slow
def test_a_named_method_that_separates_no_better_stays_with_a_warning(bert, sentences):
    with pytest.warns(UserWarning, match="compare method=none on pairs of your own") as warned:
        fit = fastflow.fit(sentences, bert, "whiten", pooling=LAYERED)
    assert warned[0].filename == __file__
    assert ([stage.kind for stage in fit.stages], fit.report["method"]) == (["whiten"], "whiten")
    assert [name_arguments(warning) for warning in fit.report["warnings"]] == [str(each.message) for each in warned]


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
    assert verify(light)[0].startswith("2 files")
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
    listed = CliRunner().invoke(fastflow_main, ["cache", str(tmp_path / "cache")])
    assert "finished            256 texts of corpus.txt, encoder " in listed.stdout
    assert train("--method", "whiten", encoder=model, out=tmp_path / "again").exit_code == 0
    refused = train("--reference-encoder", out=tmp_path / "light")
    assert (refused.exit_code, "is for an encoder from the Hub, and" in refused.stderr) == (2, True)
    assert not (tmp_path / "light").exists()


def test_help_names_files_of_the_checkout():
    shown = CliRunner().invoke(main, ["--help"]).stdout
    named = re.findall(r"\S+\.(?:txt|tsv|npy)\b", shown)
    assert "examples/novels.txt" in named
    assert all((ROOT / name).is_file() or name.split(".")[0].isupper() for name in named), named


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("latent", [(), pytest.param(("--latent",), marks=pytest.mark.whole)])
def test_a_real_corpus_ends_more_isotropic(shared_data, tmp_path, read_training, latent):
    """With recolour, token weights leave a mean cosine of 0.1 and nearly the encoder's spectrum."""
    train = make_train(
        shared_data / "models" / "mini-mlm-uncased", shared_data / "corpora" / "nli-snli-dev-test.txt", tmp_path
    )
    result = train("--sample", 1500, "--method", "flow", *latent)
    assert result.exit_code == 0, result.output
    assert "WARNING" not in result.stderr
    training = read_training(tmp_path / "m")
    assert training["texts"] == 1500
    assert training["bits_per_dimension"][0]["flow"] < training["bits_per_dimension"][0]["gaussian"]
    before, after = training["isotropy"]["before"], training["isotropy"]["after"]
    assert after["isoscore"] > before["isoscore"] + (0.05 if latent else 0.03)
    if latent:
        assert abs(after["mean_cosine"]) < abs(before["mean_cosine"]) / 2
    else:
        assert 0.05 < after["mean_cosine"] < min(0.15, before["mean_cosine"] - 0.05)


@pytest.mark.slow
def test_a_table_without_a_header_and_a_corpus_of_another_language(train, tmp_path, sentences):
    table = "".join(f"{i};{text}\n" for i, text in enumerate(sentences))
    options = ("--format", "csv", "--no-header", "--delimiter", ";", "--text-field", "2", "--dry-run")
    result = train(*options, source="-", stdin=table)
    assert result.exit_code == 0, result.stderr
    assert "corpus: 256 distinct texts" in result.stderr
    (tmp_path / "corpus.txt").write_text("".join(f"Die Bundesregierung beschloss Erhöhung {i}.\n" for i in range(64)))
    result = train("--dry-run", source=tmp_path / "corpus.txt", encoder="untuned")
    assert result.exit_code == 0, result.stderr
    assert "WARNING: words fall into " in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--method", "pca"], 2, "unknown method 'pca'; use flow, whiten"),
        (["--pooling", "max"], 2, "unknown pooling 'max'; use first-last"),
        (["--method", "whiten:12,flow", "--levels", "3"], 2, "needs a width divisible by 8, and the embeddings have"),
        (["--lr", "1e30"], 1, "training diverged at step 2 of 4"),
        (["--lr", "1e30", "--batch-size", "256", "--stop", "budget"], 1, "the final likelihood is not finite"),
        (["--demoted", "32"], 1, "32 of 31 directions cannot be demoted; use a smaller --demoted"),
        (["--eval", __file__], 1, "test_command.py, line 1: the header must be"),
        (["--log-dir", __file__], 1, "cannot be written: File exists"),
        (["--text-field", "body", "--sample", "0"], 2, "0 is not in the range x>=1"),
        (["--device", "cuda"], 1, "PyTorch finds no CUDA device"),
    ],
)
def test_wrong_options(train, tmp_path, monkeypatch, options, code, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = train(*options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("name", "content", "code", "message"),
    [
        ("absent.txt", None, 1, "absent.txt cannot be opened: No such file or directory"),
        *(("c.txt", blank, 1, "c.txt: holds no text") for blank in ("", "\n", "  \n\n \t\n")),
        ("c.txt", b"good\nb\xffd\n", 1, "c.txt, line 2: byte 2 is not UTF-8; "),
        ("c.jsonl", '"fine"\n"half \\ud83d"\n', 1, "c.jsonl, line 2: field 'text' holds half a surrogate pair"),
        ("c.txt", "one\ntwo\none\n", 2, "the corpus has 2 distinct texts, fewer than one batch of 64"),
        ("c.npz", "rubbish", 2, None),
        ("c.docx", "rubbish", 2, None),
    ],
)
def test_bad_corpora(train, tmp_path, name, content, code, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if message is None:
        with pytest.raises(UsageError) as refusal:
            format_of(name := str(path))
        message = f"fastflow: {refusal.value}"  # as embed refuses it
    assert_one_sentence(train(source=path), code, message)
    (tmp_path / "same.txt").write_text("one\none\n")
    assert_one_sentence(train("--method", "none", source=tmp_path / "same.txt"), 1, "a single distinct text")
    assert not (tmp_path / "m").exists()


def test_existing_output_is_kept(train, bert, corpus, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine").write_text("mine")
    assert_one_sentence(train(), 2, "exists already; remove it or choose another --output")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["mine"]
    arguments = [str(corpus), "--encoder", str(bert), "-o", str(tmp_path / "m"), "--debug"]
    assert isinstance(CliRunner().invoke(main, arguments).exception, UsageError), "--debug shows the error itself"


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("one text", {}, "not as str; files are read by fastflow-train"),
        (Path("corpus.txt"), {}, "not as PosixPath; files are read"),
        ({"a", "b"}, {}, "not as set"),
        (7, {}, "not as int"),
        (["one", 2], {}, "text 1 is int, not str"),
        ([], {}, "texts given in Python: holds no text"),
        (["one", " one"], {}, "a single distinct text"),
        (["one", "two"], {"epoch": 2}, "fit has no option 'epoch'; it takes method, preset, stop, pooling"),
        (["one", "two"], {"save_steps": 2}, "fit has no option 'save_steps'"),
        (["one", "two"], {"batch_size": 1}, "batch_size= must be a whole number of at least 2"),
        (["one", "two"], {"progress": 3}, "progress must be True, None or a function of a line, not 3"),
        (["one", "two"], {"eval": "absent.tsv"}, "absent.tsv: no such file or folder of scored pairs"),
        (["one", "two"], {"encoder": "./absent"}, "./absent: no such encoder directory"),
    ],
)
def test_wrong_arguments_are_one_sentence(bert, texts, options, message):
    with pytest.raises(FastflowError, match=message.replace("(", r"\(")):
        fastflow.fit(texts, **{"encoder": bert, "method": "whiten", **options})


def test_a_message_names_options_where_they_are_typed():
    text = name_options(
        "{stop:rule} looks at {path}: give a smaller {batch_size}, not {stop:{given}}", path="{x}", given=3
    )
    assert text == "--stop rule looks at {x}: give a smaller --batch-size, not --stop 3"
    assert name_arguments(text) == "stop=rule looks at {x}: give a smaller batch_size=, not stop=3"
    assert name_arguments("plain --stop") == "plain --stop"
    for error in (UsageError(text), UsageError(name_arguments(text)), pickle.loads(pickle.dumps(UsageError(text)))):
        assert error.option == "stop"
    assert UsageError("plain").option == ""


def test_a_missing_extra_names_the_command(train, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = train("--log-dir", tmp_path / "logs")
    assert result.exit_code == 1
    assert (
        result.stderr.splitlines()[-1] == f"fastflow: {missing_extra('train', 'tensorboard', 'a log for TensorBoard')}"
    )
    for module in ("transformers", "torch"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(FastflowError, match=re.escape(str(missing_extra("train", module, "fastflow.fit")))):
            fastflow.fit(["a", "b"])
    assert not [path.name for path in (ROOT / "train").glob("*.py") if "pip install" in path.read_text()]


@pytest.mark.slow
def test_a_log_directory_holds_scalars(train, tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    assert train("--log-dir", tmp_path / "logs").exit_code == 0
    (path,) = (tmp_path / "logs").iterdir()
    scalars = [(v.tag, event.step) for event in EventFileLoader(str(path)).Load() for v in event.summary.value]
    every = [(tag, step) for tag in ("bits_per_dimension", "gradient_norm") for step in (1, 2, 3, 4)]
    assert sorted(scalars) == [*every, ("separability", 0), ("separability", 4)]


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
    path, equal = tmp_path / "paragraphs.txt", ("--method", "standardize", "--token-weights", "none", "--dry-run")
    path.write_text("\n".join(" ".join(sentences[i : i + 6]) for i in range(0, 252, 6)) + "\n")
    assert "WARNING: these texts are paragraphs, of 5" in train(*equal, source=path).stderr
    cut = train(*equal, "--sentences", source=path).stderr
    assert ("corpus: 252 distinct texts" in cut, "are paragraphs" in cut) == (True, False)


@pytest.mark.slow
def test_lines_and_files_go_where_the_caller_wants_them(train, bert, sentences, tmp_path, empty, capfd):
    def fit(**options):
        return fastflow.fit(sentences, bert, "flow", spectrum=0.5, demoted=0, background=0, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit().report["warnings"] == []
    assert capfd.readouterr() == ("", "")
    assert list(empty.iterdir()) == []
    said = train("--method", "flow", "--spectrum", 0.5, "--demoted", 0).stderr.splitlines()
    lines = []
    for _ in range(2):
        cached = fit(progress=lines.append, cache_folder=tmp_path / "kept")
    assert capfd.readouterr() == ("", "")
    assert len(list((tmp_path / "kept").glob("*.npy"))) == 1
    assert [line for line in lines if not line.startswith("cached ")] == said[:2] * 2
    assert len(lines) == 5
    assert np.array_equal(fit(progress=True).pooled, cached.pooled)
    assert [line for line in capfd.readouterr().err.splitlines() if line in lines] == said[:2]
