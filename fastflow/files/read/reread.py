"""An input that is read twice: a file, or a temporary copy of a pipe."""

from __future__ import annotations

import contextlib
import tempfile
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


class Rereadable:
    """``with Rereadable(path) as opened``: each ``opened(path)`` reads the input from its start.

    Raises a FastflowError for a pipe of more than LIMIT bytes, or a file that changes meanwhile.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = contextlib.ExitStack()
        self._copy: Path | None = None
        self._identity: tuple[int, int] | None = None

    def __enter__(self) -> Rereadable:
        with Input(self._path) as source:  # only once: a named pipe ends with its first reader
            if self._path != "-" and source.identity is not None:
                self._identity = source.identity
                return self
            folder = tempfile.TemporaryDirectory(prefix="fastflow-", ignore_cleanup_errors=True)
            self._copy = Path(self._folder.enter_context(folder)) / "input"
            try:
                self._fill(source, self._copy)
            except BaseException:
                self._folder.close()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.close()

    def __call__(self, path: str) -> Input:
        if self._copy is not None:
            return Spooled(path, self._copy)
        source = Input(path)
        if source.identity != self._identity:
            with source:
                raise source.changed()
        return source

    def _fill(self, source: Input, copy: Path) -> None:
        size = 0
        try:
            with copy.open("wb") as out:
                while chunk := source.file.read(CHUNK):
                    if (size := size + len(chunk)) > LIMIT:
                        raise FastflowError(
                            f"{self._path} has more than {LIMIT >> 20} MB, and --fit reads its texts twice: a pipe is "
                            "kept in a temporary file up to that size; write it to a file and give that"
                        )
                    out.write(chunk)
        except OSError as error:
            raise FastflowError(
                f"{self._path} cannot be kept in {copy.parent} to be read twice: {error.strerror}; write it to a file "
                "and give that"
            ) from error
