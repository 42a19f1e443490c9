"""An input that is read twice: a file, or a temporary copy of a pipe."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from fastflow.errors import FastflowError
from fastflow.files.read.inputs import CHUNK, Input

LIMIT = 256 << 20


class Spooled(Input):
    """The input of the pipe ``path``, read from its ``copy``."""

    def __init__(self, path: str, copy: Path) -> None:
        self._copy = copy
        super().__init__(path)

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def _open(self, path: str) -> BinaryIO:
        return self._copy.open("rb")

    def _stat(self) -> None:
        return None


@contextlib.contextmanager
def reread(path: str) -> Iterator[Callable[[], Input]]:
    """Give a function that opens the input from its start.

    Raises a FastflowError for a pipe of more than LIMIT bytes, or a file that changes meanwhile.
    """
    with contextlib.ExitStack() as stack:
        with Input(path) as source:  # only once: a named pipe ends with its first reader
            identity = None if path == "-" else source.identity
            if identity is None:
                folder = tempfile.TemporaryDirectory(prefix="fastflow-", ignore_cleanup_errors=True)
                copy = Path(stack.enter_context(folder)) / "input"
                _fill(source, copy)

        def open_again() -> Input:
            if identity is None:
                return Spooled(path, copy)
            again = Input(path)
            if again.identity != identity:
                with again:
                    raise again.changed()
            return again

        yield open_again


def _fill(source: Input, copy: Path) -> None:
    size = 0
    try:
        with copy.open("wb") as out:
            while chunk := source.file.read(CHUNK):
                if (size := size + len(chunk)) > LIMIT:
                    raise FastflowError(
                        f"{source.path} has more than {LIMIT >> 20} MB, and --fit reads its texts twice: a pipe is "
                        "kept in a temporary file up to that size; write it to a file and give that"
                    )
                out.write(chunk)
    except OSError as error:
        raise FastflowError(
            f"{source.path} cannot be kept in {copy.parent} to be read twice: {error.strerror}; write it to a file "
            "and give that"
        ) from error
