"""What fastflow-train refuses: one plain sentence, an exit code, and nothing under the final name.

The rules themselves are tested next to the modules that have them: these cases are how a command reports each kind.
"""

import sys

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from fastflow.commands.train import train as main
from fastflow.errors import SMALL_TORCH, UsageError, missing_extra
from fastflow.files.read.texts import format_of

from support.commands import assert_one_sentence
from support.places import ROOT
from support.processes import run_limited


def written(path, content):
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
        (["--spectrum", "1.1"], 2, "1.1 is not in the range 0<=x<=1"),
        (["--mean-share", "1"], 2, "1.0 is not in the range 0<=x<=0.99"),
        (["--demoted", "32"], 1, "32 of 31 directions cannot be demoted; use a smaller --demoted"),
        (["--eval", "/nowhere.tsv"], 2, "Path '/nowhere.tsv' does not exist"),
        (["--eval", __file__], 1, "test_cli_bad_input.py, line 1: the header must be"),
        (["--log-dir", __file__], 1, "cannot be written: File exists"),
        (["--device", "tpu"], 2, "'tpu' is not one of"),
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
        (
            b"good\nfine\nb\xe9d\n",
            1,
            "c.txt, line 3: byte 2 is not UTF-8; convert the file, name its --encoding, or use --errors replace",
        ),
        ("one\ntwo\none\n", 2, "the corpus has 2 distinct texts, fewer than one batch of 64"),
    ],
)
def test_bad_corpora(train, tmp_path, content, code, message):
    path = tmp_path / "c.txt"
    if content is not None:
        written(path, content)
    assert_one_sentence(train(source=path), code, message)
    assert_one_sentence(train("--method", "none", source=written(path, "one\none\n")), 1, "a single distinct text")
    assert not (tmp_path / "m").exists()


def nan(directory):
    tensors = load_file(directory / "model.safetensors")
    tensors["encoder.layer.1.attention.self.query.weight"][0, 0] = float("nan")
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def truncated(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


SPOILT = {
    "tensor encoder.layer.1.attention.self.query.weight holds NaN or infinity": nan,
    "model.safetensors is damaged or not safetensors": truncated,
    "has no tokenizer: neither tokenizer.json nor vocab.txt is there": lambda d: (d / "tokenizer.json").unlink(),
    "is not an encoder: it has no config.json": lambda d: (d / "config.json").unlink(),
    "has no model.safetensors": lambda d: (d / "model.safetensors").unlink(),
    "tokenizer.json cannot be read as a tokenizer": lambda d: written(d / "tokenizer.json", "{}"),
}


@pytest.mark.parametrize("message", SPOILT)
def test_bad_encoders(train, bert_copy, tmp_path, message):
    SPOILT[message](bert_copy)
    assert_one_sentence(train(encoder=bert_copy), 1, message)
    assert not (tmp_path / "m").exists()


def test_existing_output_is_kept(train, tmp_path):
    (tmp_path / "m").mkdir()
    written(tmp_path / "m" / "mine", "mine")
    assert_one_sentence(train(), 2, "exists already; remove it or choose another --output")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["mine"]


def test_debug_shows_the_error_itself(bert, corpus, tmp_path):
    arguments = [str(corpus), "--encoder", str(bert), "-o", str(tmp_path / "m"), "--method", "pca", "--debug"]
    assert isinstance(CliRunner().invoke(main, arguments).exception, UsageError)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_missing_extra_names_the_command(tmp_path, module):
    program = f"import sys; sys.modules[{module!r}] = None; from fastflow.commands.train import train; train()"
    arguments = ["corpus.txt", "--encoder", "x", "-o", str(tmp_path / "m")]
    done = run_limited([sys.executable, "-c", program, *arguments], seconds=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"fastflow: {missing_extra('train', module, 'fastflow-train')}")
    assert (SMALL_TORCH in done.stderr, done.stderr.count("\n")) == (module == "torch", 1)


def test_how_to_install_is_written_in_one_place():
    """The sentence of errors.missing_extra, whose command works; none of training's own."""
    assert not [path.name for path in (ROOT / "train").glob("*.py") if "pip install" in path.read_text()]


@pytest.mark.parametrize("name", ["c.npz", "c.docx"])
def test_a_corpus_of_another_kind_is_refused_as_embed_refuses_it(train, tmp_path, name):
    path = written(tmp_path / name, b"\x93NUMPY")
    with pytest.raises(UsageError) as refusal:
        format_of(str(path))
    assert_one_sentence(train(source=path), 2, f"fastflow: {refusal.value}")
    assert not (tmp_path / "m").exists()


def test_what_is_not_there_is_named_with_its_remedy(train, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_one_sentence(train("--device", "cuda"), 1, "PyTorch finds no CUDA device")
