"""``fastflow pull`` and ``fastflow push``."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from fastflow.commands import QUIET
from fastflow.console import emit, say

if TYPE_CHECKING:
    from fastflow.model.sharing import Record


@click.command()
@click.argument("repository", metavar="REPO[@REVISION]")
@click.option("-o", "--output", metavar="DIR", type=click.Path(path_type=Path), required=True, help="A new directory.")
@QUIET
def pull(repository: str, output: Path, quiet: bool) -> None:
    """Fetch a model from the Hugging Face Hub.

    REVISION is a branch, a tag or a commit, by default main. Safetensors, JSON, texts and tokenizers are taken, and
    compared with the Hub's hashes; pickles are not taken. DIR/hub.json keeps the commit and the sha256 of every file.
    The same command again compares DIR with them; with a commit it needs no network. HF_ENDPOINT and HF_TOKEN work as
    in huggingface_hub.

    \b
    fastflow pull ORGANISATION/NAME@COMMIT -o my-model
    fastflow embed input.txt -m my-model
    """
    record, left = sharing(quiet).pull(repository, output)
    report(record, left, quiet)


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("repository", metavar="REPO")
@click.option("--private", is_flag=True, help="If the repository is made now, only its owner can read it.")
@QUIET
def push(directory: Path, repository: str, private: bool, quiet: bool) -> None:
    """Send a model to the Hugging Face Hub.

    The model is verified first. Prints REPO@COMMIT, for fastflow pull. It needs a token that may write: the
    environment variable HF_TOKEN, or hf auth login.

    \b
    fastflow push my-model ORGANISATION/NAME --private
    """
    record, left = sharing(quiet).push(directory, repository, private)
    report(record, left, quiet)


def sharing(quiet: bool) -> ModuleType:
    """Import the module of pull and push; ``quiet`` hides its progress bars."""
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    return import_module("fastflow.model.sharing")


def report(record: Record, left: list[str], quiet: bool) -> None:
    """Print the record of a pull or push, and the files left out."""
    from fastflow.model.sharing import listing

    emit(str(record))
    if not quiet:
        say(f"fastflow: {len(record.files)} files match their hashes")
        if left:
            say(f"fastflow: left out {listing(left)}")
