"""An input while it is read: a file, packed or not, or standard input; its lines, and whether it stayed the same."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from fastflow.errors import FastflowError
from fastflow.files.read.records import RowFault, Skipped

if TYPE_CHECKING:
    from fastflow.files.read.compressed import Readable

PACKED = (".gz", ".zst")  # suffixes
CHUNK = 1 << 16  # bytes read at a time
LONGEST = 1 << 24  # bytes of a line: 16 MiB, hundreds of times what the largest limit of tokens can use
PATIENCE = 50  # milliseconds in which the next line of a pipe still belongs to the lines before it


class Input:
    """``with Input(path) as source``: an open file, or standard input for ``-``. Raises a FastflowError naming it.

    ``identity`` is the size and modification time of a regular file when it was opened, None of anything else. The
    open handle counts, not the name: a file that is moved or deleted meanwhile is read to its end.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._waiting = 0  # lines that have been read and not been given
        self.digest: Any = None  # of hashlib, that takes the content of lines as they are read
        self.skipped = Skipped()
        try:
            self._file = self._open(path)
            self._handle = self._unpacked()
            self.identity = self._stat()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            if isinstance(error, FileNotFoundError) and " " in path:
                reason = f"{reason}; a text itself is given through standard input: echo TEXT | fastflow embed -"
            if isinstance(error, IsADirectoryError):
                reason = f"{reason}; give the files in it, a text a line: '{path.rstrip(os.sep) or os.sep}/*'"
            raise FastflowError(f"{path} cannot be opened: {reason}") from error

    def __enter__(self) -> Input:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.path != "-":
            self._file.close()

    def lines(
        self, errors: str = "strict", null: bool = False, encoding: str | None = None, whole: bool = False
    ) -> Iterator[str]:
        """Lines without their ends; only \\n and \\r\\n end a line, and a byte-order mark is dropped.

        ``errors``: strict, replace, or another of Python's, for bytes that ``encoding`` (None: UTF-8) does not have.
        ``null``: texts that end with a NUL instead, and hold line ends. ``whole``: lines keep the \\r at their end.
        Raises a FastflowError naming the line or text, also for a file that was changed between its opening and its
        end.
        """
        number, unit, end = 0, "text" if null else "line", b"" if null or whole else b"\r"
        try:
            for number, raw in enumerate(self.raw_lines(b"\0" if null else b"\n", encoding), 1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                yield raw.removesuffix(end).decode("utf-8", errors)
        except UnicodeDecodeError as error:
            fault = (
                f"byte {error.start + 1} is not UTF-8" if encoding is None else f"holds bytes that are not {encoding}"
            )
            other = "its" if encoding is None else "another"
            raise RowFault(
                f"{self.path}, {unit} {number}: {fault}; convert the file, name {other} --encoding, or use --errors "
                "replace",
                "--errors replace",
            ) from error
        except OSError as error:
            self.check_unchanged()
            raise FastflowError(f"{self.path}, {unit} {number + 1}: cannot be read: {error}") from error
        self.check_unchanged()

    def share(self) -> float | None:
        """The share of a file's bytes that has been read, compressed ones of a .gz; None of a pipe or an empty file."""
        size = self.identity[0] if self.identity else 0
        return min(1.0, self._file.tell() / size) if size else None

    def waits(self) -> bool:
        """Whether the next line of a pipe or terminal has not arrived within PATIENCE; never true of a file."""
        if self._waiting or self.identity is not None or not hasattr(select, "poll"):
            return False
        try:
            poll = select.poll()
            poll.register(self._file.fileno(), select.POLLIN)
        except OSError:  # not a real file, such as an io.BytesIO: nothing has to be waited for
            return False
        return not poll.poll(PATIENCE)

    def check_unchanged(self) -> None:
        """Raise a FastflowError if the file's size or modification time is another than when it was opened."""
        if self._stat() != self.identity:
            raise self.changed()

    def changed(self) -> FastflowError:
        """The sentence for a file that did not stay the same."""
        return FastflowError(f"{self.path} was changed while it was read; run the command again once it is complete")

    @property
    def file(self) -> BinaryIO:
        """The open file as it lies on disk, for a reader that seeks in it."""
        return self._file

    def read_raw(self, size: int) -> bytes:
        """At most ``size`` of the next bytes as they lie in the file, compressed or not; b"" at its end."""
        return self._file.read(size)

    def raw_lines(self, end: bytes = b"\n", encoding: str | None = None) -> Iterator[bytes]:
        """The bytes between ``end`` and ``end``, unpacked; those after the last one too, if there are any.

        With ``encoding``, the bytes are UTF-8 made of it.
        """
        handle = self._handle
        if encoding is not None:
            from fastflow.files.read.encodings import Recoded  # most inputs are UTF-8

            handle = Recoded(handle, encoding)
        start: list[bytes] = []  # of a line whose end has not been read
        number = held = 0  # lines that were given, bytes of ``start``
        while chunk := handle.read1(CHUNK):
            if self.digest is not None:
                self.digest.update(chunk)
            *whole, rest = chunk.split(end)
            if whole:
                whole[0] = b"".join([*start, whole[0]])
                start, held = [], 0
            for self._waiting, line in zip(range(len(whole) - 1, -1, -1), whole, strict=True):
                yield line
            start.append(rest)
            number, held = number + len(whole), held + len(rest)
            if held > LONGEST:
                unit = "text" if end == b"\0" else "line"
                raise FastflowError(
                    f"{self.path}, {unit} {number + 1}: is longer than {LONGEST >> 20} MB, which no model can use; cut "
                    "it, or end each text with a line end"
                )
        if last := b"".join(start):
            yield last

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self._file.fileno())
        except OSError:  # io.UnsupportedOperation: not a real file
            return None
        return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def _open(self, path: str) -> BinaryIO:
        if path != "-":
            return open(path, "rb")
        if sys.stdin is None:
            raise FastflowError("standard input is closed; name a file instead of -")
        return sys.stdin.buffer

    def _unpacked(self) -> Readable:
        if not self.path.endswith(PACKED):
            return self._file  # type: ignore[return-value]
        from fastflow.files.read.compressed import unpacked  # most inputs are not packed

        return unpacked(self.path, self._file)


def without_packing(path: str) -> str:
    """``path`` without .gz or .zst at its end."""
    return next((path.removesuffix(suffix) for suffix in PACKED if path.endswith(suffix)), path)
