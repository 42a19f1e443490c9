"""Options, checks, counts and the writing loop of a run, which embeds files of texts.

A part, or shard, is one machine's share of a run's rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastflow.errors import UsageError
from fastflow.files.read import InputFormat
from fastflow.files.read.inputs import PACKED, Input
from fastflow.files.read.sources import Sources, check_formats, one_text
from fastflow.files.read.texts import FORMATS
from fastflow.files.write import Block, StandardOutput
from fastflow.progress import Progress

if TYPE_CHECKING:
    from fastflow.files.write.outputs import OutputFile
    from fastflow.files.write.partial import State


@dataclass(frozen=True)
class EmbedConfig:
    """The options that decide the rows; only a run with equal options can be resumed."""

    layout: InputFormat = field(default_factory=InputFormat)
    precision: str = "float32"
    dim: int | None = None
    normalize: bool = False
    batch_tokens: int | None = None
    dedupe: bool = False
    shard: tuple[int, int] | None = None
    truncate: str = "right"
    prompt: str | None = None
    only_new: bool = False

    def to_record(self) -> dict[str, Any]:
        """Return the options as one flat record."""
        return {name: value for name, value in vars(self).items() if name != "layout"} | self.layout._asdict()


@dataclass
class Summary:
    """The counts of a run."""

    texts: int = 0
    seconds: float = field(default=0.0, compare=False)  # from the first texts on
    empty: int = 0
    resumed: int = 0
    cut: int = 0
    reused: int = 0  # texts with a pooled vector from a store
    cache: str = ""  # a sentence about the file of --cache
    finished: bool = False  # by an earlier run
    unused: bool = False  # whether an empty result was dropped
    appended: dict[str, int] = field(default_factory=dict)  # as ``AppendedFile.counts``
    known: int = 0  # left out by --only-new
    skipped: int = 0  # left out by --errors skip
    skipped_rows: list[str] = field(default_factory=list)


def parse_keep(given: Sequence[str]) -> tuple[str, ...]:
    """Parse ``--keep a,b --keep c``; raises a UsageError for an empty or repeated field."""
    names = [name for each in given for name in each.split(",")]
    for name in names:
        if not name or names.count(name) > 1:
            raise UsageError(f"--keep {','.join(given)}: must name fields, each once, such as --keep title,url")
    return tuple(names)


def parse_shard(text: str) -> tuple[int, int]:
    """Parse ``I/N`` with 1 <= I <= N; raises a UsageError."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise UsageError(f"--shard {text}: must be I/N with I from 1 to N, such as 1/3")
    return int(part), int(parts)


def check_delimiter(given: str | None) -> str | None:
    """Return the character of ``--delimiter``; raises a UsageError."""
    if given is None or given in ("\\t", "tab"):
        return given and "\t"
    if len(given) != 1 or given in '"\r\n':
        raise UsageError(f"--delimiter {given!r}: must be one character that separates columns, such as ';' or '\\t'")
    return given


@dataclass(frozen=True)
class Run:
    """The options of a run that do not change its rows.

    ``opened`` opens an input. ``given``: the command's arguments. ``cache``: a file of vectors that runs share.
    ``started`` is called after the first texts are read.
    ``overwrite``, ``append``, ``delete_missing`` and ``words`` are the options.
    """

    resume: bool = False
    quiet: bool = False
    opened: Callable[[str], Input] = Input
    given: Sequence[str] = ()
    cache: Path | None = None
    started: Callable[[], None] | None = None
    overwrite: bool = False
    append: bool = False
    delete_missing: bool = False
    words: bool = True


def write_rows(
    blocks: Iterator[Block],
    writer: OutputFile | StandardOutput,
    state: State | None,
    progress: Progress,
    before: Iterable[Block] = (),
) -> None:
    """Write ``blocks``, the first of no rows, from which the writer takes width and dtype; ``state`` records them.

    ``before``: the rows that an interrupted run wrote, without vectors.
    """
    with progress:
        if not isinstance(writer, StandardOutput):
            for block in before:
                writer.skip(block)
        writer.write(next(blocks))
        progress.begin()
        for block in blocks:
            writer.write(block)
            if state is not None and not isinstance(writer, StandardOutput):
                state.save(writer.rows, writer.sync())
            progress.advance(len(block.rows))
    writer.finish()


def check_target(target: Path | None, paths: Sequence[str], settings: EmbedConfig, run: Run) -> None:
    """Raise a UsageError unless options and files fit together, and the output may be written."""
    check_formats(paths, settings.layout)
    check_cache(run.cache, target, paths)
    if settings.only_new and run.cache is None:
        raise UsageError("--only-new leaves out the texts of earlier runs, which --cache FILE.db knows: add --cache")
    if settings.only_new and settings.shard is not None:
        raise UsageError("--only-new and --shard: the rows of a part are fixed; leave out one of them")
    if target is None and settings.shard is not None:
        raise UsageError("--shard needs an output, for a part has a manifest beside it: -o DIR")
    if run.append or run.delete_missing:
        check_append(target, settings, run)
    if target is None:
        if run.resume:
            raise UsageError("--resume needs an output file: -o OUT")
        check_keep("JSON Lines", StandardOutput.own, settings)
        return
    from fastflow.files.write.outputs import writer_for
    from fastflow.files.write.partial import check_known, check_output

    kind = writer_for(target)
    kind.check_extra(target)
    layout = settings.layout
    asked = {"ids": layout.id_field is not None, "fields": bool(layout.keep)}
    options = {"ids": "--id-field", "fields": "--keep"}
    if not kind.keeps_fields and (absent := [name for name in asked if asked[name]]):
        part = "" if settings.shard is None else f"; with --shard name the part: -o {target.with_suffix('.parquet')}"
        raise UsageError(
            f"{target}: a {target.suffix} file has no place for {absent[0]}; write .jsonl, .parquet or .db, or leave "
            f"out {options[absent[0]]}{part}"
        )
    check_keep(f"{target}: a {target.suffix} file", kind.own, settings, kind.same)
    for path in paths:
        check_output(target, path)
    if layout.errors == "skip":
        from fastflow.files.write.outputs import check_list

        check_list(target)
    if run.resume and settings.shard is None:
        check_known(target)
    if os.path.lexists(target) and not run.append and (not run.resume or target.is_symlink()):
        check_replaceable(target, run.overwrite)


def check_append(target: Path | None, settings: EmbedConfig, run: Run) -> None:
    """Raise a UsageError for options that exclude --append or --delete-missing."""
    for wrong, sentence in (
        (not run.append, "--delete-missing deletes rows of the file that --append extends: add --append"),
        (target is None or target.suffix != ".db", "--append extends a .db: give -o FILE.db"),
        (run.resume, "--append needs no --resume: the same command leaves the rows that are there"),
        (settings.shard is not None, "--append and --shard: a part is a file of its own; leave out one of them"),
        (settings.only_new, "--append adds only rows that the file lacks: leave out --only-new"),
        (
            run.delete_missing and settings.layout.errors == "skip",
            "--delete-missing would delete rows that --errors skip leaves out: leave out one of them",
        ),
    ):
        if wrong:
            raise UsageError(sentence)


def check_cache(cache: Path | None, target: Path | None, paths: Sequence[str]) -> None:
    """Raise a UsageError if --cache names the input, the output, or a file of another format."""
    if cache is None:
        return
    from fastflow.files.write.outputs import WRITERS
    from fastflow.files.write.partial import partial_path

    for path in [*paths, *([] if target is None else [str(target), str(partial_path(target))])]:
        if path != "-" and os.path.realpath(path) == os.path.realpath(str(cache)):
            raise UsageError(f"--cache {cache}: is the input or the output; name a file of its own")
    others = {*WRITERS, *PACKED, *(f".{name}" for name in FORMATS)} - {".db"}
    if cache.suffix.lower() in others:
        raise UsageError(
            f"--cache {cache}: a cache is an SQLite file, and {cache.suffix} is of another format; name a FILE.db"
        )


def check_keep(what: str, own: tuple[str, ...], settings: EmbedConfig, same: Callable[[str], str] = str) -> None:
    """Raise a UsageError if two columns have one name; ``same`` folds names that the format takes as equal."""
    layout = settings.layout
    ids = () if layout.id_field is None else (layout.id_field,)
    taken: dict[str, str | None] = {same(name): None for name in own}
    for name in (*ids, *layout.keep):
        if (other := taken.setdefault(same(name), name)) not in (None, name):
            raise UsageError(f"{what} cannot hold {other!r} and {name!r}, which differ in case alone; keep one of them")
        if other is None:
            option = "--id-field" if name in ids else "--keep"
            raise UsageError(f"{what} has a field {name!r} of its own; rename yours, or leave out {option} {name}")


def check_types(sources: Sources, target: Path | None, settings: EmbedConfig) -> dict[str, Any]:
    """Return the Arrow types of kept columns; raises a UsageError if the output cannot hold one."""
    types = sources.types(settings.layout)
    if types and (target is None or target.suffix != ".parquet"):
        from fastflow.files.read.parquet import check_json

        check_json(types, sources.paths[0], settings.layout)
    return types


def check_inputs(target: Path | None, paths: Sequence[str], settings: EmbedConfig, resume: bool) -> None:
    """Raise if the first row cannot be read, or a pipe is given with --resume or --shard."""
    if not all(path != "-" and (os.path.isfile(path) or not os.path.lexists(path)) for path in paths):
        if "-" in paths and settings.shard is not None:
            from fastflow.files.shards.manifest import not_countable

            raise not_countable("-")
        if "-" in paths and resume:
            raise not_resumable("-")
        return
    with Sources(paths) as sources:
        sources.skippable = True
        check_types(sources, target, settings)
        for row in islice(sources.rows(settings.layout), 1):
            one_text(row)


def check_resumable(sources: Sources) -> None:
    """Raise a UsageError for an input that cannot be read again."""
    for path, identity in zip(sources.paths, sources.identities, strict=True):
        if identity is None:
            raise not_resumable(path)


def not_resumable(path: str) -> UsageError:
    """Return the error for a pipe with --resume."""
    what = "standard input" if path == "-" else f"{path}, which is not a file,"
    return UsageError(f"--resume cannot reread {what}; give a file")


def check_replaceable(target: Path, overwrite: bool) -> None:
    """Raise a UsageError if ``target`` exists and no record of a run describes it, unless ``overwrite``."""
    if not os.path.lexists(target):
        return
    if not target.is_symlink() and not target.is_file():
        raise UsageError(f"{target} is not a regular file; choose another output with -o")
    if not overwrite and (reason := _find_foreign(target)) is not None:
        append = ", add to it with --append" * (target.suffix == ".db")
        raise UsageError(
            f"{target} exists, and {reason}: choose another output with -o{append}, or replace it with --overwrite"
        )


def _find_foreign(target: Path) -> str | None:
    if target.is_symlink():
        return "is a link"
    if target.suffix == ".db":
        from fastflow.files.database import find_foreign

        if (found := find_foreign(target)) is not None:
            return found
    from fastflow.files.shards.manifest import is_present, manifest_path, read_manifest
    from fastflow.files.write.partial import FAULTS, identify, run_path

    if manifest_path(target).exists() and is_present(target.parent, read_manifest(manifest_path(target))):
        return None
    try:
        record = json.loads(run_path(target).read_text(encoding="utf-8"))
        known = identify(target) in (record["file"], record["before"])
    except FAULTS:
        known = False
    return None if known else f"no {run_path(target).name} says that one run made it as it is"
