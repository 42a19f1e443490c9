"""The ``fastflow`` command, run in this process: what goes to standard output, what to standard error, exit codes."""

from __future__ import annotations

import json

import pytest

from fastflow import __version__
from fastflow.files import embed as embed_module

from support.commands import assert_one_sentence, run, write_pairs


def test_help_and_version():
    result = run("--help")
    assert result.exit_code == 0
    assert {"embed", "eval", "info", "verify"} <= set(result.stdout.split())
    assert run("--version").stdout.strip().endswith(__version__)
    for command in ("embed", "eval", "info", "verify"):
        assert run(command, "-h").exit_code == 0


@pytest.mark.slow
def test_default_is_the_model_in_the_package_wherever_a_model_is_named(corpus):
    assert run("info", "default").stdout == run("info").stdout
    assert run("verify", "default").exit_code == 0
    assert run("embed", corpus, "-m", "default", "--quiet").stdout == run("embed", corpus, "--quiet").stdout


@pytest.mark.slow
def test_static_is_the_table_in_the_package_wherever_a_model_is_named(corpus, monkeypatch):
    told = run("info", "static").stdout
    assert json.loads(told)["model"] == "static"
    assert run("verify", "static").exit_code == 0
    vectors = run("embed", corpus, "-m", "static", "--quiet").stdout
    assert vectors != run("embed", corpus, "--quiet").stdout
    monkeypatch.setenv("FASTFLOW_MODEL", "static")
    assert run("info").stdout == told
    assert run("embed", corpus, "--quiet").stdout == vectors


WRONG = [
    (["absent.txt"], 1, "absent.txt cannot be opened: No such file or directory"),
    (["."], 1, ". cannot be opened: Is a directory; give the files in it: './*'"),
    (["absent.docx"], 1, "absent.docx cannot be opened: No such file"),
    (
        ["in.docx"],
        2,
        "unknown suffix .docx; texts are read from txt, tsv, csv, jsonl, parquet: if it is one of these, add --format",
    ),
    (["in.npy"], 2, "in.npy holds vectors, not texts"),
    (["in.csv"], 1, "in.csv, line 1: is this the header or the first text"),
    (["in.csv", "--no-header", "--delimiter", ";;"], 2, "--delimiter ';;': must be one character"),
    (["in.txt", "--no-header"], 2, "--no-header is for csv and tsv"),
    (["in.txt", "-o", "out.arrow"], 2, "unknown suffix '.arrow'; the output can be .npy, .npz"),
    (["in.txt", "-o", "folder"], 2, "is a directory"),
    (
        ["in.txt", "-o", "absent/out.npy"],
        1,
        "cannot be written: No such file or directory; make the folder absent or choose",
    ),
    (["in.txt", "-o", "in.txt"], 2, "unknown suffix '.txt'"),
    (["in.jsonl", "-o", "in.jsonl"], 2, "is the input"),
    (["in.txt", "--dim", "33"], 2, "--dim must be 1 to 32"),
    (["in.txt", "--precision", "int4"], 2, "'int4' is not one of"),
    (["in.txt", "--shard", "5/4"], 2, "--shard 5/4: must be I/N"),
    (["in.txt", "--resume"], 2, "--resume needs an output file"),
    (["-", "--resume", "-o", "out.npy"], 2, "cannot reread standard input"),
    (["in.txt", "--format", "xml"], 2, "unknown format 'xml'"),
    (["in.txt", "--id-field", "id"], 2, "a txt file has no fields"),
    (["in.jsonl", "--text-field", "body"], 1, "in.jsonl, line 1: no field 'body'; the fields are text"),
    (["in.txt", "--truncate", "error"], 1, "in.txt, line 2: longer than the model's 64 tokens"),
    (["in.txt", "--threads", "0"], 2, "threads must be a whole number of at least 1"),
    (["in.txt", "--batch-tokens", "0"], 2, "0 is not in the range"),
    (["in.txt", "--device", "tpu"], 2, "unknown device 'tpu'"),
    (
        ["in.txt", "--dtype", "float16"],
        2,
        "dtype 'float16' runs on a GPU alone (device cuda); on the CPU use auto, float32",
    ),
    (["The dog runs."], 1, "a text itself is given through standard input"),
    (["in.txt", "--dtype", "int3"], 2, "unknown dtype 'int3'; known are auto, float32"),
    (["in.txt", "-m", "absent"], 1, "absent: no such model directory"),
    (["in.txt", "-m", "folder"], 1, "is not a model"),
    ([], 2, "Missing argument"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_wrong_calls_are_one_sentence_and_an_exit_code(model, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "in.txt").write_text("the dog\n" + "a " * 80 + "\n")
    (tmp_path / "in.jsonl").write_text('{"text": "the dog"}\n')
    (tmp_path / "in.csv").write_text("the dog\n")
    for name in ("in.docx", "in.npy"):
        (tmp_path / name).write_bytes(b"")
    before = sorted(p.name for p in tmp_path.iterdir())
    given = [] if "-m" in arguments else ["-m", model]
    assert_one_sentence(run("embed", *arguments, *given), code, message)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_debug_shows_where_an_error_came_from(model):
    shown = run("--debug", "embed", "absent.txt", "-m", model)
    assert type(shown.exception).__name__ == "FastflowError"
    assert shown.exc_info[2] is not None


def test_even_the_unexpected_is_one_sentence(model, corpus, monkeypatch):
    monkeypatch.setattr(embed_module, "embed_file", lambda *_: 1 / 0)
    result = run("embed", corpus, "-m", model, "--quiet")
    assert result.exit_code == 1
    assert result.stderr == (
        "fastflow: unexpected ZeroDivisionError: division by zero; please report it with what --debug shows\n"
    )
    monkeypatch.setattr(embed_module, "embed_file", lambda *_: (_ for _ in ()).throw(MemoryError))
    assert_one_sentence(run("embed", corpus, "-m", model, "--quiet"), 1, "out of memory; use a smaller --batch-tokens")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["eval", "absent.tsv"], 2, "does not exist"),
        (["eval", "bad.tsv"], 1, "bad.tsv, line 1: the header must be"),
        (["eval", "."], 1, "bad.tsv, line 1"),
        (["eval", "good.tsv", "--json", "absent/out.json"], 1, "absent/out.json cannot be written: No such file"),
        (["info", "absent"], 1, "absent: no such model directory"),
        (["verify", "absent"], 1, "fastflow.json cannot be read: No such file"),
        (["verify", "."], 1, "fastflow.json cannot be read: No such file"),
        (["nothing"], 2, "No such command 'nothing'"),
    ],
)
def test_other_commands_called_wrongly(model, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.tsv").write_text("a\tb\n")
    write_pairs(tmp_path / "good.tsv")
    result = run(*arguments, *(["-m", model] if arguments[0] == "eval" else []))
    if "good.tsv" in arguments:  # the table is out before the file fails
        assert (result.exit_code, result.stderr.count(message)) == (1, 1)
    else:
        assert_one_sentence(result, code, message)
