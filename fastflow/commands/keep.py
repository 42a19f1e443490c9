"""``fastflow info``, ``models``, ``verify``, ``cache``, ``pull`` and ``push``."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import click

from fastflow.commands import DTYPE, JSON, QUIET, Command, model_argument, model_named
from fastflow.console import emit, open_runtime, say, write_json
from fastflow.errors import FastflowError, UsageError, need_extra

NAMED = 3  # languages
SPEARMAN = re.compile(r"^\| Spearman average of 7, all \|.*?([\d.]+) \|$", re.MULTILINE)


@click.command(cls=Command)
@model_argument
@JSON
@DTYPE
def info(model: str | None, option: str | None, json_file: str | None, dtype: str) -> None:
    """Print a model's settings as JSON.

    They are pooling, calibration, dimensions, and how the model runs on this machine, by itself or with --dtype.
    """
    runtime = open_runtime(model_named(model, option), "auto", dtype, None, quiet=True)
    write_json(json_file or "-", runtime.info())


@click.command(cls=Command)
@JSON
def models(json_file: str | None) -> None:
    """List the models in the package and in the Hub's local cache.

    Spearman x100 is the mean of seven English sets in the card of a model in the package.
    """
    from fastflow.files.cached_files import bytes_for_people
    from fastflow.model.locate import list_models

    rows = [{"name": name, **_describe_model(folder, snapshot)} for name, folder, snapshot in list_models()]
    if json_file is not None:
        write_json(json_file, {"models": rows})
    if json_file == "-":
        return
    width = max(len(row["name"]) for row in rows)
    emit(f"{'model':{width}}  dimensions        size  Spearman  languages")
    for row in rows:
        names = row["languages"]
        last = row["fault"] or (", ".join(names) if len(names) <= NAMED else f"{len(names)} languages: --json")
        figures = f"{row['dim'] or '':>10}  {bytes_for_people(row['bytes']):>10}  {row['spearman'] or '':>8}"
        emit(f"{row['name']:{width}}  {figures}  {last}".rstrip())


def _describe_model(folder: Path, snapshot: Path | None) -> dict[str, Any]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    row: dict[str, Any] = {"bytes": sum(path.stat().st_size for path in files)}
    row |= {"dim": None, "spearman": None, "languages": [], "fault": None}
    if snapshot is None:
        return row | {"fault": "cannot run: the cache has no safetensors or no tokenizer of it"}
    from fastflow.model.artifact import load_model
    from fastflow.model.tokenizer.languages import load_languages, serves
    from fastflow.transforms.calibration import output_dim

    try:
        model = load_model(snapshot)
        vocabulary = model.tokenizer()
    except FastflowError as error:
        return row | {"fault": f"cannot run: {error}"}
    row["dim"] = model.truncate_dim or output_dim(model.calibration, model.pooled_dim)
    training = model.manifest.get("training")
    own = training.get("languages") if isinstance(training, dict) else None
    row["languages"] = own or [name for name in load_languages() if serves(vocabulary, name)]
    if folder == snapshot and (figure := SPEARMAN.search((folder / "README.md").read_text(encoding="utf-8"))):
        row["spearman"] = round(float(figure[1]), 1)
    return row


@click.command(cls=Command)
@model_argument
@click.argument("exported", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option(
    "--with",
    "other",
    type=click.Choice(["st", "sentence-transformers", "onnx"]),
    help="Also compare the vectors with those that Sentence Transformers (st for short) makes of DIR, or of MODEL if "
    "it saved that; or that ONNX Runtime makes of DIR.",
)
@JSON
def verify(
    model: str | None, exported: Path | None, option: str | None, other: str | None, json_file: str | None
) -> None:
    """Check the files of a model directory.

    Every file must match its sha256, no other file may lie there, and the model must load. A plain encoder and a
    directory that Sentence Transformers saved have no sha256: settings must be known, and weights whole and finite.
    DIR is the output of fastflow export; --with compares its vectors of texts of every length, and fails if they differ
    by more than rounding.
    """
    from fastflow.model.locate import find_model
    from fastflow.model.verify import verify as check

    if exported is not None and other is None:
        raise UsageError(f"{exported} is compared with the model by --with: name the library that opens it")
    path = find_model(model_named(model, option))
    result: dict[str, Any] = {"model": str(path), "checks": check(path)}
    if json_file != "-":
        emit("\n".join(result["checks"]))
    if other is not None:
        from fastflow.evaluation.agreement import LIBRARIES, compare_with_onnx, compare_with_st

        extra = "onnx" if other == "onnx" else "st"
        need_extra(extra, LIBRARIES[extra], f"vectors were not compared: --with {extra}")
        say("fastflow: compares the vectors of texts of every length, which takes up to a minute")
        found = (compare_with_onnx if extra == "onnx" else compare_with_st)(path, exported)
        result["onnx" if other == "onnx" else "sentence_transformers"] = found.report()
        if json_file != "-":
            emit(str(found))
        found.check(exported or path)
    if json_file is not None:
        write_json(json_file, result)


@click.command(cls=Command)
@click.argument("place", required=False, metavar="[DIR|FILE.db]", type=click.Path(path_type=Path))
@click.option("--clear", is_flag=True, help="Remove the entries instead of listing them.")
@click.option("--older-than", type=click.FloatRange(0), metavar="DAYS", help="Only entries made over DAYS days ago.")
@JSON
def cache(place: Path | None, clear: bool, older_than: float | None, json_file: str | None) -> None:
    """List or remove the files that earlier runs keep.

    DIR, by default ~/.cache/fastflow, holds the pooled embeddings of corpora for fastflow-train, and trials of int8:
    how far an encoder's int8 is from float32. FILE.db is the file of fastflow embed --cache. A removed entry is
    computed again when needed. Entries that a running process uses are kept, and files that fastflow did not make.

    \b
    fastflow cache
    fastflow cache --clear --older-than 30
    fastflow cache FILE.db
    """
    from fastflow.cache_folder import cache_directory
    from fastflow.files import cached_files as kept

    if place is not None and place.is_file():
        if clear or older_than is not None:
            raise UsageError(f"{place} is one file: remove it as such; --clear is for the cache of fastflow-train")
        from fastflow.files.vector_cache import contents, report

        if json_file is not None:
            write_json(json_file, contents(place))
        if json_file != "-":
            emit("\n".join(report(place)))
        return
    if place is not None and not place.exists():
        named = "a folder of fastflow-train --cache-folder or a file of embed --cache"
        raise UsageError(f"{place} does not exist; name {named}")
    where, now = cache_directory(place), time.time()
    found = [e for e in kept.entries(where) if older_than is None or now - e.made > older_than * kept.DAY]
    if clear and json_file is not None:
        raise UsageError("--json lists what is kept: leave it out, or leave out --clear")
    if clear:
        removed, in_use = kept.clear(found)
        say(f"fastflow: removed {kept.count_in_words(removed)} from {where}")
        if in_use:
            say(f"fastflow: kept {kept.count_in_words(in_use)} in use by a running process")
        return
    if json_file is not None:
        write_json(json_file, {"place": str(where), "entries": [entry.json() for entry in found]})
    if json_file != "-":
        emit("\n".join([f"{where}: {kept.count_in_words(found)}", *(entry.describe(now) for entry in found)]))


@click.command(cls=Command)
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
    _share("pull", quiet, repository, output)


@click.command(cls=Command)
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
    _share("push", quiet, directory, repository, private)


def _share(act: str, quiet: bool, *arguments: Any) -> None:
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    from fastflow.model import sharing

    record, left = getattr(sharing, act)(*arguments)
    emit(str(record))
    if not quiet:
        say(f"fastflow: {len(record.files)} files match their hashes")
        if left:
            say(f"fastflow: left out {sharing.listing(left)}")
