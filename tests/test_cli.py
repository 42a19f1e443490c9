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


def test_a_file_that_cannot_be_written_fails_after_the_table(model, tmp_path):
    write_pairs(tmp_path / "good.tsv")
    out = tmp_path / "absent" / "out.json"
    result = run("eval", tmp_path / "good.tsv", "--json", out, "-m", model)
    assert "good" in result.stdout
    assert (result.exit_code, result.stderr.count(f"{out} cannot be written: No such file")) == (1, 1)
