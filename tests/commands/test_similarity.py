"""``fastflow similarity``, and the options that mean one thing in every command."""

from __future__ import annotations

import json

import click
import pytest

from fastflow import Runtime, __version__
from fastflow.cli import LATER, NAMES, TASKS, main
from fastflow.commands.train import train

from support.commands import run

TEXTS = ["the dog sings", "a cat  sees\nthe river", "the dog"]


@pytest.fixture(scope="module")
def values(model):
    return Runtime(model).similarity(TEXTS, TEXTS)


def test_the_first_text_is_compared_with_the_others(model, values):
    shown = run("similarity", *TEXTS, "-m", model)
    assert shown.exit_code == 0
    lines = [f"{values[0, 1]:7.4f}  a cat sees the river", f"{values[0, 2]:7.4f}  the dog"]
    assert shown.stdout.splitlines() == lines
    assert shown.stderr.startswith(f"fastflow: model {model}, calibrated by flow, ")
    assert run("similarity", *TEXTS, "-q", "-m", model).stderr == ""


def test_json_has_every_pair_and_goes_where_it_is_told(model, values, tmp_path):
    printed = json.loads(run("similarity", *TEXTS, "-m", model, "-q", "--json").stdout)
    assert (printed["texts"], printed["similarity"]) == (TEXTS, "cosine")
    assert printed["values"] == values.tolist()
    both = run("similarity", *TEXTS, "-m", model, "-q", "--json", tmp_path / "s.json")
    assert len(both.stdout.splitlines()) == 2
    assert json.loads((tmp_path / "s.json").read_text()) == printed


def test_the_environment_names_the_model_of_every_command(model, monkeypatch):
    monkeypatch.setenv("FASTFLOW_MODEL", str(model))
    for command in (["similarity", "a", "b"], ["info"]):
        assert str(model) in run(*command).output
    assert json.loads(run("info", "default").stdout)["model"] == "default"
    assert json.loads(run("info", "-m", "default").stdout)["model"] == "default"


def commands() -> dict[str, click.Command]:
    context = click.Context(main)
    found = {name: main.get_command(context, name) for name in NAMES}
    return {name: command for name, command in found.items() if command is not None}


def test_an_option_means_one_thing_in_every_command():
    names = {"-o": "--output", "-m": "--model", "-q": "--quiet"}
    helps: dict[str, set[str]] = {}
    for command in commands().values():
        for option in command.params:
            if not isinstance(option, click.Option):
                continue
            for short, long in names.items():
                assert (short in option.opts) == (long in option.opts), f"{command.name} {option.opts}"
            if "--json" in option.opts or "--quiet" in option.opts:
                helps.setdefault(option.opts[-1], set()).add(str(option.help))
    assert {name: len(found) for name, found in helps.items()} == {"--json": 1, "--quiet": 1}
    for program in (main, train):
        assert {"-V", "--version"} in [set(option.opts) for option in program.params]
    with_json = {name for name, c in commands().items() if any("--json" in p.opts for p in c.params)}
    assert {"status", "verify", "cache", "embed", "eval", "report", "bench", "search", "info"} <= with_json


def test_help_lists_every_command_by_task_with_its_whole_summary():
    shown = run("--help").stdout
    assert set(NAMES) == set(LATER) == set(main.list_commands(click.Context(main)))
    assert "..." not in shown.partition("Embed and compare")[2]
    for task, summaries in TASKS.items():
        assert f"{task}:" in shown
        for name, summary in summaries.items():
            assert f"{name} " in shown
            assert summary in " ".join(shown.split())
            start = summary.rstrip(".")
            assert (commands()[name].help or "").startswith(start), f"the help of {name} begins otherwise"


def test_train_is_the_command_fastflow_train():
    assert commands()["train"] is train
    assert run("train", "--version").stdout.strip().endswith(__version__)
