"""Commands that cannot work are refused before the model is loaded."""

from __future__ import annotations

import pytest

from fastflow import console

from support.commands import assert_one_sentence, run


@pytest.fixture
def no_model(monkeypatch):
    def opened(*arguments):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("fastflow.commands.embed.open_runtime", opened)
    assert console.open_runtime is not opened


@pytest.mark.parametrize(
    ("source", "options", "code", "message"),
    [
        ("absent.txt", [], 1, "absent.txt cannot be opened: No such file or directory"),
        ("in.txt", ["--shard", "1/2"], 2, "--shard needs an output, for a part has a manifest beside it: -o DIR"),
        ("-", ["--shard", "1/2", "-o", "parts"], 2, "--shard counts the rows before it takes its part"),
        ("-", ["--resume", "-o", "x.npy"], 2, "--resume cannot reread standard input; give a file"),
        ("in.txt", ["--resume"], 2, "--resume needs an output file: -o OUT"),
        ("in.txt", ["-o", "x.xyz"], 2, "unknown suffix '.xyz'"),
        ("in.txt", ["-o", "x.npy", "--keep", "a"], 2, "has no place for fields"),
        ("in.txt", ["-o", "x.npy", "--id-field", "a"], 2, "has no place for ids"),
        ("in.txt", ["-o", "x.npy", "--log-prob"], 2, "has no place for log_prob"),
        ("in.txt", ["-o", "in.txt"], 2, "unknown suffix '.txt'"),
        ("in.txt", ["--prompt", "a", "--prompt-name", "b"], 2, "give --prompt or --prompt-name, not both"),
        ("in.txt", ["--dim", "0"], 2, "0 is not in the range x>=1"),
        ("in.txt", ["--cache", "in.txt"], 2, "is the input or the output; name a file of its own"),
        ("in.txt", ["--cache", "x.npy"], 2, "--cache x.npy: a cache is an SQLite file, and .npy is of another format;"),
        ("in.txt", ["--cache", "mine.TXT"], 2, ".TXT is of another format; name a FILE.db"),
        ("in.txt", ["--cache", "x.db.gz"], 2, ".gz is of another format; name a FILE.db"),
        ("in.txt", ["--fit", "--shard", "1/2", "-o", "p"], 2, "--fit and --shard: every shard needs one and the same"),
        ("in.jsonl", [], 1, "which field is the text? Use --text-field; the fields are title, body"),
        ("in.jsonl", ["--text-field", "x"], 1, "in.jsonl, line 1: no field 'x'; the fields are title, body"),
        ("in.jsonl", ["--text-field", "body", "--keep", "x"], 1, "no field 'x'"),
        ("pairs.tsv", [], 2, "holds pairs of texts; choose one with --text-field sentence1 or sentence2"),
        ("bytes.txt", [], 1, "bytes.txt, line 1: byte 1 is not UTF-8"),
    ],
)
def test_the_model_is_not_loaded_for_it(no_model, tmp_path, monkeypatch, source, options, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a dog\n")
    (tmp_path / "in.jsonl").write_text('{"title": "a", "body": "b"}\n')
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\na\tb\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\n")
    before = sorted(tmp_path.iterdir())
    assert_one_sentence(run("embed", source, *options, stdin="a dog\n"), code, message)
    assert sorted(tmp_path.iterdir()) == before


def test_a_pipe_is_not_read_beforehand(model):
    found = run("embed", "-", "-m", model, "--quiet", stdin="the dog\na cat\n")
    assert (found.exit_code, found.stdout.count("\n")) == (0, 2)


def test_no_calibration_and_an_empty_prompt_are_said(model, bert, tmp_path):
    (tmp_path / "in.txt").write_text("a dog\n")
    assert ", no calibration, 32 dimensions" in run("embed", tmp_path / "in.txt", "-m", bert).stderr
    assert "no calibration" not in run("embed", tmp_path / "in.txt", "-m", model).stderr
    said = "fastflow: the prompt is empty: nothing is put before a text\n"
    assert said in run("embed", tmp_path / "in.txt", "-m", model, "--prompt", "").stderr
    assert said not in run("embed", tmp_path / "in.txt", "-m", model, "--prompt", "so ").stderr
    assert said not in run("embed", tmp_path / "in.txt", "-m", model).stderr
