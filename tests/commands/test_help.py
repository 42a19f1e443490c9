"""--help in sections: what is common first, every option in --help-all."""

import re

import click
import pytest
from click.testing import CliRunner

from fastflow.cli import NAMES, main
from fastflow.commands import RARE, SECTIONS, SHORT, name_option

CONTEXT = click.Context(main, info_name="fastflow")
COMMANDS = {name: main.get_command(CONTEXT, name) for name in NAMES}
LONG = [name for name, command in COMMANDS.items() if len(command.params) > SHORT]


def read(name, flag):
    done = CliRunner().invoke(main, [name, flag])
    assert done.exit_code == 0, done.output
    return done.stdout


def list_options(text):
    """The options of the sections, which follow the first heading."""
    lists = text[re.search(r"^\w+:$", text, re.M).start() :]
    return re.findall(r"^  (?:-\w(?:, | / ))?--([a-z0-9-]+)", lists, re.M)


def visible(command):
    return [each for each in command.params if isinstance(each, click.Option) and not each.hidden]


@pytest.mark.each
@pytest.mark.parametrize("name", LONG)
def test_help_is_in_sections_and_help_all_has_every_option(name):
    short, whole = read(name, "--help"), read(name, "--help-all")
    own = {name_option(each) for each in visible(COMMANDS[name])} - {"k"}
    assert {*list_options(whole)} == own | {"help", "help-all"}
    assert {*list_options(short)} == own - RARE | {"help", "help-all"}
    named = set(re.findall(r"--([a-z][a-z-]*[a-z])", re.sub(r"-\n +", "-", short)))
    assert named & own & RARE == set(), "an option that only --help-all shows"
    heads = re.findall(r"^(\w+):$", whole, re.M)
    assert heads == [head for head in (*SECTIONS, "Run") if head in heads]
    assert len(heads) >= 3


def test_the_longest_helps_are_short():
    counts = {name: len(list_options(read(name, "--help"))) for name in ("train", "embed", "serve")}
    assert counts["train"] <= 24
    assert counts["embed"] <= 26
    assert counts["serve"] <= 13


def test_a_short_command_has_one_list_and_no_help_all():
    assert "Options:" in read("pull", "--help")
    done = CliRunner().invoke(main, ["pull", "x", "--help-all"])
    assert done.exit_code == 2
    assert "No such option" in done.stderr


def test_every_name_of_the_tables_is_an_option():
    known = {name_option(each) for command in COMMANDS.values() for each in visible(command)}
    named = [name for names in SECTIONS.values() for name in names.split()]
    assert len(named) == len(set(named)), "an option has one section"
    assert {name.partition("=")[0] for name in named} - known == set()
    assert RARE - known == set()
