"""A run that writes an output file: begun or continued, and what is kept when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastflow.console import add_note, say
from fastflow.files.write.outputs import OutputFile
from fastflow.files.write.partial import State, run_path


@contextmanager
def growing(writer: OutputFile, state: State, resume: bool) -> Iterator[int]:
    """Begin ``writer``, or with ``resume`` continue it: gives the rows that an earlier run finished.

    Rows that were finished before an error or an interruption stay in NAME.partial, and a note of the error gives their
    place, if the file has not got its name yet. Without ``resume``, a run replaces what an earlier one left there. What
    a finished file is of is recorded, if it is no part, which has a manifest: with --resume the same command has
    nothing to do then.
    """
    if not resume:
        run_path(writer.target).unlink(missing_ok=True)
    if not writer.of_shard:
        writer.seal = lambda whole: state.done(whole, writer.rows)
    if not resume and (lost := state.left()):
        say(f"fastflow: starts again and replaces {lost}")
    rows, position = state.load() if resume else state.forget()
    writer.begin(position)
    try:
        yield rows
    except BaseException as error:
        if writer.named:  # an interruption that came after the last byte
            state.forget()
            add_note(error, f"{writer.target} is whole")
        elif state.rows or writer.rows:
            add_note(error, state.kept(writer.rows, error))
        else:
            writer.remove()
            state.forget()
            if isinstance(error, KeyboardInterrupt):  # another error has a sentence of its own
                add_note(error, f"no rows of {writer.target} were finished; the same command begins again")
        raise
    state.forget()
