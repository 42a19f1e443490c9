"""A run: blocks of rows from texts or vectors -> an output that keeps the finished ones if it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastflow.files.read.inputs import Input
from fastflow.files.write.printing import Block, StandardOutput
from fastflow.progress import Progress

if TYPE_CHECKING:
    from fastflow.files.write.outputs import OutputFile
    from fastflow.files.write.partial import State


@dataclass(frozen=True)
class Run:
    """The options of a run that leave its rows as they are.

    ``resume`` continues an interrupted run; without it, the rows that the run left are replaced. ``quiet`` leaves out
    progress and warnings, ``judge=False`` the warning that many texts are unlike the model's corpus. ``opened`` opens
    an input. ``given`` are the arguments of the command, for the manifest of a shard. ``cache`` is a file of vectors
    that other runs computed, and gets those of this one. ``started`` is called when the first texts were read.
    """

    resume: bool = False
    quiet: bool = False
    judge: bool = True
    opened: Callable[[str], Input] = Input
    given: Sequence[str] = ()
    cache: Path | None = None
    started: Callable[[], None] | None = None


class Made(Protocol):
    """The rows of a run in their order, with their vectors."""

    def before(self, rows: int) -> Iterator[Block]:
        """The first ``rows`` rows, which an earlier run wrote, without vectors."""

    def empty(self) -> Block:
        """A block of no rows, whose vectors (0, D') have the width and dtype of the others."""

    def blocks(self) -> Iterator[Block]:
        """The rows after those."""


def write(
    made: Made, writer: OutputFile | StandardOutput, state: State | None, finished: int, progress: Progress
) -> None:
    """Write every block of ``made`` after the ``finished`` rows of an earlier run; ``state`` follows each block."""
    with progress:
        if not isinstance(writer, StandardOutput):
            for block in made.before(finished):
                writer.skip(block)
        writer.write(made.empty())  # an empty input still gives a file of the right width and dtype
        progress.begin()  # the finished rows took no time of these
        for block in made.blocks():
            writer.write(block)
            if state is not None and not isinstance(writer, StandardOutput):
                state.save(writer.rows, writer.sync())
            progress.advance(len(block.rows))
    writer.finish()
