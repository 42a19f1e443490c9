"""What fastflow-train refuses: one plain sentence, an exit code, and nothing left under the final name."""

import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from fastflow.errors import UsageError, missing_extra
from fastflow.files.read.texts import format_of
from fastflow.train.cli import main

from support.places import ROOT


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--method", "pca"], 2, "unknown method 'pca'; use flow, whiten"),
        (["--method", "whiten:33"], 2, "whiten:33 is out of range: it takes 1 to 32"),
        (["--pooling", "max"], 2, "unknown pooling 'max'; use first-last"),
        (["--pooling", "mean-of-layers:1,9"], 2, "asks for a layer outside 0 to 3"),
        (["--batch-size", "257"], 2, "the corpus has 256 distinct texts, fewer than one batch of 257"),
        (
            ["--method", "whiten:12,flow", "--levels", "3"],
            2,
            "needs a width divisible by 8, and the embeddings have 12",
        ),
        (["--max-length", "999"], 2, "--max-length must be 3 to 128 for this encoder, not 999"),
        (["--lr", "1e30"], 1, "training diverged at step 2 of 4"),
        (
            ["--lr", "1e30", "--batch-size", "256", "--stop", "budget"],
            1,
            "training diverged: the final likelihood is not finite",
        ),
        (["--method", "auto", "--stop", "budget"], 2, "--method auto chooses by the rule"),
        (["--stream", "--method", "flow"], 2, "--stream is for closed forms, such as whiten,recolour; a flow needs"),
        (["--stream", "--method", "auto", "--sample", "9"], 2, "--stream is for closed forms, such as whiten,recolour"),
        (["--spectrum", "1.1"], 2, "1.1 is not in the range 0<=x<=1"),
        (["--mean-share", "1"], 2, "1.0 is not in the range 0<=x<=0.99"),
        (["--demoted", "32"], 1, "32 of 32 directions cannot be demoted; use a smaller --demoted"),
        (["--method", "auto,flow"], 2, "unknown method 'auto'"),
        (["--eval", "/nowhere.tsv"], 2, "Path '/nowhere.tsv' does not exist"),
        (["--eval", __file__], 1, "test_cli_bad_input.py, line 1: the header must be"),
        (["--log-dir", __file__], 1, "cannot be written: File exists"),
        (["--cache", __file__], 1, "cannot be written: File exists; choose another with --cache"),
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


def test_cuda_is_refused_where_there_is_none(train, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = train("--device", "cuda")
    assert (result.exit_code, "PyTorch finds no CUDA device" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (None, 1, "c.txt cannot be opened: No such file or directory"),
        ("", 1, "c.txt: holds no text"),
        (b"good\nfine\nb\xe9d\n", 1, "c.txt, line 3: byte 2 is not UTF-8; convert the file, or use --errors replace"),
        ("one\ntwo\none\n", 2, "the corpus has 2 distinct texts, fewer than one batch of 64"),
    ],
)
def test_bad_corpora(train, tmp_path, content, code, message):
    path = tmp_path / "c.txt"
    if content is not None:
        written(path, content)
    result = train(source=path)
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr
    assert not (tmp_path / "m").exists()
    single = train("--method", "none", source=written(path, "one\none\n"))
    assert (single.exit_code, "a single distinct text" in single.stderr) == (1, True)


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
    result = train(encoder=bert_copy)
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert not (tmp_path / "m").exists()


def test_existing_output_is_kept(train, tmp_path):
    out = tmp_path / "m"
    out.mkdir()
    written(out / "mine", "mine")
    result = train()
    assert (result.exit_code, "exists already; remove it or choose another --out" in result.stderr) == (2, True)
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_debug_shows_the_error_itself(bert, corpus, tmp_path):
    arguments = [str(corpus), "--encoder", str(bert), "--out", str(tmp_path / "m"), "--method", "pca", "--debug"]
    result = CliRunner().invoke(main, arguments)
    assert type(result.exception).__name__ == "UsageError"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_missing_extra_names_the_command(tmp_path, module):
    program = f"import sys; sys.modules[{module!r}] = None; from fastflow.train.cli import main; main()"
    arguments = ["corpus.txt", "--encoder", "x", "--out", str(tmp_path / "m")]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"fastflow: {missing_extra('train', module, 'fastflow-train')}\n"


def test_how_to_install_is_said_in_one_place():
    """The sentence of errors.missing_extra, whose command works; none of training's own."""
    for path in (ROOT / "train").glob("*.py"):
        assert "pip install" not in path.read_text(), path.name


@pytest.mark.parametrize("name", ["c.npz", "c.docx"])
def test_a_corpus_of_another_kind_is_refused_as_embed_refuses_it(train, tmp_path, name):
    path = written(tmp_path / name, b"\x93NUMPY")
    with pytest.raises(UsageError) as refusal:
        format_of(str(path))
    result = train(source=path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == f"fastflow: {refusal.value}"
    assert not (tmp_path / "m").exists()
