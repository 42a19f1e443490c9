"""A run: its options, its counts, and the loop that writes its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastflow.errors import UsageError
from fastflow.files.read import Layout
from fastflow.files.read.inputs import Input
from fastflow.files.write import Block, StandardOutput
from fastflow.progress import Progress

if TYPE_CHECKING:
    from fastflow.files.write.outputs import OutputFile
    from fastflow.files.write.partial import State


@dataclass(frozen=True)
class Settings:
    """The options that shape rows: all must agree for a run to be resumed."""

    layout: Layout = field(default_factory=Layout)
    precision: str = "float32"
    dim: int | None = None
    normalize: bool = False
    batch_tokens: int | None = None
    dedupe: bool = False
    shard: tuple[int, int] | None = None
    truncate: str = "right"
    prompt: str | None = None
    log_prob: bool = False
    only_new: bool = False

    def to_record(self) -> dict[str, Any]:
        return vars(self) | {"layout": self.layout._asdict(), "ranges": None}  # an earlier version recorded ranges


@dataclass
class Summary:
    """The counts of a run."""

    texts: int = 0
    empty: int = 0
    resumed: int = 0
    cut: int = 0
    reused: int = 0  # texts with a known pooled vector
    cache: str = ""  # the content of --cache, in words
    finished: bool = False  # an earlier run finished it
    known: int = 0  # rows that --only-new left out
    skipped: int = 0  # rows that --errors skip left out, and the first places
    skipped_rows: list[str] = field(default_factory=list)


def parse_keep(given: Sequence[str]) -> tuple[str, ...]:
    """Return the fields of ``--keep a,b --keep c``; raises a UsageError for a repeated one."""
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
    """The options of a run that leave its rows as they are.

    ``judge`` allows the warning about unlike texts. ``given``: the arguments, for the manifest of a shard. ``cache``:
    vectors that runs share. ``started`` is called after the first texts are read.
    """

    resume: bool = False
    quiet: bool = False
    judge: bool = True
    opened: Callable[[str], Input] = Input
    given: Sequence[str] = ()
    cache: Path | None = None
    started: Callable[[], None] | None = None


class BlockSource(Protocol):
    """The rows of a run in order, with their vectors."""

    def before(self, rows: int) -> Iterator[Block]:
        """Yield the first ``rows`` rows of an earlier run, without vectors."""

    def empty(self) -> Block:
        """Return a block of no rows: vectors (0, D') of the run's width and dtype."""

    def blocks(self) -> Iterator[Block]:
        """Yield the other rows."""


def write(
    source: BlockSource, writer: OutputFile | StandardOutput, state: State | None, finished: int, progress: Progress
) -> None:
    """Write the blocks of ``source`` after ``finished`` rows; ``state`` records each."""
    with progress:
        if not isinstance(writer, StandardOutput):
            for block in source.before(finished):
                writer.skip(block)
        writer.write(source.empty())  # gives width and dtype, also of an empty input
        progress.begin()  # the rate counts new rows only
        for block in source.blocks():
            writer.write(block)
            if state is not None and not isinstance(writer, StandardOutput):
                state.save(writer.rows, writer.sync())
            progress.advance(len(block.rows))
    writer.finish()
