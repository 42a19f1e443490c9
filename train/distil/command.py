"""Run ``fastflow distill``: distil files, write the model, and print about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from fastflow.atomic import check_out
from fastflow.errors import UsageError
from fastflow.files.read.records import Layout
from fastflow.files.read.sources import Sources
from fastflow.model.encoder.architecture import is_static
from fastflow.train.data.corpus import read_texts
from fastflow.train.distil.gathering import Kept
from fastflow.train.distil.result import READING, name_files, write_lines
from fastflow.train.distil.run import Settings, distil
from fastflow.train.distil.teacher import Teacher
from fastflow.train.progress import Voice


def distil_files(
    model: str, paths: Sequence[str], layout: Layout, out: Path, settings: Settings, voice: Voice, resume: bool
) -> None:
    """Make a table of ``model`` by the texts of ``paths`` and write it to ``out``."""
    check_out(out, "-o")
    if "-" in paths and (settings.words or resume):
        raise UsageError("--words and --resume read the corpus again, which standard input cannot be: give a file")
    started, keepers = time.monotonic(), list[Kept]()

    def texts() -> Iterable[str]:
        return read_texts(paths, layout)

    def keep(run: dict[str, Any]) -> Kept:
        keepers.append(Kept(out, run, resume, voice))
        return keepers[0]

    with Kept.lock(out):
        with Sources(paths) as sources:
            total, _ = sources.expected(layout)
        try:
            teacher = Teacher(model)
            found = distil(texts, name_files(paths), teacher, settings, voice, None if "-" in paths else keep, total)
            mark = found.save(out)
        except KeyboardInterrupt as stop:
            for keeper in keepers:
                keeper.note(stop)
            raise
        for keeper in keepers:
            keeper.remove()
    for reason in found.training["reasons"]:
        voice.say(reason)
    click.echo("\n".join(write_lines(found.training)))
    if len(teacher.targets) == 1 and not is_static(teacher.model.encoder):  # as all-MiniLM-L6-v2
        voice.say(READING)
    rows, seconds = found.training["table"], time.monotonic() - started
    size = f"{rows['tokens']:,} tokens of {rows['dim']} numbers in {rows['dtype']}"
    voice.say(f"{out}: {size}, fingerprint {mark[:16]}, {seconds:.0f} s")
