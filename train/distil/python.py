"""``fastflow.distill``: the arguments of a caller in Python, and the files of the command -> a distillation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastflow.errors import UsageError
from fastflow.files.read.records import Layout
from fastflow.files.read.sources import Sources
from fastflow.model.encoder.architecture import is_static
from fastflow.replacing import check_out
from fastflow.train.data.corpus import read_texts
from fastflow.train.distil.gathering import Kept
from fastflow.train.distil.result import READING, Distilled, lines, named
from fastflow.train.distil.run import Settings, distil
from fastflow.train.distil.teacher import Teacher
from fastflow.train.progress import Voice
from fastflow.train.python import SOURCE, checked_texts, naming_arguments, voice_of


def distil_texts(
    model: str | os.PathLike[str],
    texts: Any,
    options: dict[str, Any],
    progress: bool | Callable[[str], None] | None,
) -> Distilled:
    """``fastflow.train.distill``, whose arguments these are."""
    with naming_arguments():
        given = list(checked_texts(texts, "distill"))
        teacher, settings = Teacher(os.fspath(model)), Settings(**options)
        return distil(partial(iter, given), [SOURCE], teacher, settings, voice_of(progress), total=len(given))


def distil_files(
    model: str,
    paths: Sequence[str],
    layout: Layout,
    out: Path,
    settings: Settings,
    voice: Voice,
    resume: bool,
) -> None:
    """The body of ``fastflow distill``: files -> a model directory, and the lines printed about it."""
    check_out(out, "-o")
    if "-" in paths and (settings.words or resume):
        raise UsageError("--words and --resume read the corpus again, which standard input cannot be: give a file")
    started, keepers = time.monotonic(), list[Kept]()

    def texts() -> Iterable[str]:
        return read_texts(paths, layout)

    def kept(run: dict[str, Any]) -> Kept:
        keepers.append(Kept(out, run, resume, voice))
        return keepers[0]

    with Kept.alone(out):
        with Sources(paths) as sources:
            total, _ = sources.expected(layout)
        resumed = None if "-" in paths else kept
        try:
            teacher = Teacher(model)
            found = distil(texts, named(paths), teacher, settings, voice, resumed, total)
            mark = found.save(out)
        except KeyboardInterrupt as stop:
            for keeper in keepers:
                keeper.note(stop)
            raise
        for keeper in keepers:
            keeper.remove()
    for reason in found.training["reasons"]:
        voice.say(reason)
    click.echo("\n".join(lines(found.training)))
    if len(teacher.targets) == 1 and not is_static(teacher.model.encoder):  # as all-MiniLM-L6-v2
        voice.say(READING)
    rows, seconds = found.training["table"], time.monotonic() - started
    size = f"{rows['tokens']:,} tokens of {rows['dim']} numbers in {rows['dtype']}"
    voice.say(f"{out}: {size}, fingerprint {mark[:16]}, {seconds:.0f} s")
