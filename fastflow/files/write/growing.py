"""A run that writes an output file: begun or continued, and what is kept when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastflow.console import say
from fastflow.files.write.outputs import OutputFile
from fastflow.files.write.partial import State


@contextmanager
def growing(writer: OutputFile, state: State, resume: bool) -> Iterator[int]:
    """Begin ``writer``, or with ``resume`` continue it: gives the rows that an earlier run finished.

    Rows that were finished before an error or an interruption stay in NAME.partial, and a message gives their place;
    without ``resume``, a run replaces what an earlier one left there.
    """
    if not resume and (lost := state.left()):
        again = f"starts again and replaces {lost:,} finished rows in {writer.partial}"
        say(f"fastflow: {again}; --resume would have kept them")
    rows, position = state.load() if resume else state.forget()
    writer.begin(position)
    try:
        yield rows
    except BaseException as error:
        if state.rows or writer.rows:
            say(f"fastflow: {state.kept(writer.rows)}")
        else:
            writer.remove()
            state.forget()
            if isinstance(error, KeyboardInterrupt):  # another error has a sentence of its own
                say(f"fastflow: no rows of {writer.target} were finished; the same command begins again")
        raise
    state.forget()
