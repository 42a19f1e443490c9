"""An open input: a file, packed or not, or standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from fastflow.errors import FastflowError
from fastflow.files.read import LONGEST, RowFault

if TYPE_CHECKING:
    from typing_extensions import Self

    from fastflow.files.read.compressed import Readable

PACKED = (".gz", ".zst")
CHUNK = 1 << 16
PATIENCE = 50  # milliseconds to wait for the next line of a pipe


class BadLine(RowFault):
    """A line that is not text; ``text``: its readable part."""

    def __init__(self, place: str, fault: str, remedy: str, option: str, text: str) -> None:
        super().__init__(place, fault, remedy, option)
        self.text = text


class TooLong(bytes):
    """The quote that a long line leaves open."""

    FAULT = f"is longer than {LONGEST >> 20} MB, which no model can use"
    SAID = FAULT, "cut it, or end each text with a line end", "--errors skip"


class Input:
    """An open file, or standard input for ``-``; raises a FastflowError.

    ``identity``: size and modification time of a regular file at opening, else None.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.waiting = 0  # rows read and not yielded
        self.digest: Any = None  # a hash object, updated with the content
        self.fields: tuple[str, ...] = ()  # of the texts
        try:
            self.file = self._open(path)
            self._handle = self._unpack()
            self.identity = self._stat()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            if isinstance(error, FileNotFoundError) and " " in path:
                reason = f"{reason}; a text itself is given through standard input: echo TEXT | fastflow embed -"
            if isinstance(error, IsADirectoryError):
                reason = f"{reason}; give the files in it, a text a line: '{path.rstrip(os.sep) or os.sep}/*'"
            raise FastflowError(f"{path} cannot be opened: {reason}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.path != "-":
            self.file.close()

    def lines(
        self, errors: str = "strict", null: bool = False, encoding: str | None = None, whole: bool = False
    ) -> Iterator[str | BadLine]:
        r"""Yield lines without their ends \n or \r\n and a byte-order mark; a BadLine for a line that is not text.

        ``errors``: Python's handler for bytes that are not of ``encoding`` (None: UTF-8). ``null``: texts end with NUL.
        ``whole``: lines keep a final \r. Raises a FastflowError naming the line, also if the file changed.
        """
        number, unit, end = 0, "text" if null else "line", b"" if null or whole else b"\r"
        try:
            for number, raw in enumerate(self.raw_lines(b"\0" if null else b"\n", encoding, whole), 1):
                if isinstance(raw, TooLong):
                    yield BadLine(f"{self.path}, {unit} {number}", *TooLong.SAID, raw.decode())
                    continue
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                raw = raw.removesuffix(end)
                try:
                    yield raw.decode("utf-8", errors)
                except UnicodeDecodeError as error:
                    text = raw.decode("utf-8", "surrogateescape")
                    yield BadLine(f"{self.path}, {unit} {number}", *_undecodable(error, encoding), text)
        except OSError as error:
            self.check_unchanged()
            raise FastflowError(f"{self.path}, {unit} {number + 1}: cannot be read: {error}") from error
        self.check_unchanged()

    def share(self) -> float | None:
        """Return the share of bytes read, or None."""
        size = self.identity[0] if self.identity else 0
        return min(1.0, self.file.tell() / size) if size else None

    def waits(self) -> bool:
        """Whether a pipe's next line does not arrive within PATIENCE."""
        if self.waiting or self.identity is not None or not hasattr(select, "poll"):
            return False
        try:
            poll = select.poll()
            poll.register(self.file.fileno(), select.POLLIN)
        except OSError:  # no file descriptor, as in io.BytesIO
            return False
        return not poll.poll(PATIENCE)

    def check_unchanged(self) -> None:
        if self._stat() != self.identity:
            raise self.changed()

    def changed(self) -> FastflowError:
        return FastflowError(f"{self.path} was changed while it was read; run the command again once it is complete")

    def raw_lines(self, end: bytes = b"\n", encoding: str | None = None, quoted: bool = False) -> Iterator[bytes]:
        """Yield the unpacked lines without ``end``, as UTF-8.

        A line of over LONGEST bytes is a TooLong: at once, or if ``quoted``, after its end.
        """
        start: list[bytes] = []  # pieces of an unfinished line
        held = quotes = 0  # its bytes and quotes
        for chunk in self.chunks(encoding):
            *whole, rest = chunk.split(end)
            if whole:
                if held + len(whole[0]) > LONGEST:
                    whole[0] = TooLong(b'"' * ((quotes + whole[0].count(b'"')) % 2))
                    del whole[: held > LONGEST and not quoted]
                else:
                    whole[0] = b"".join([*start, whole[0]])
                start, held, quotes = [], 0, 0
            for self.waiting, line in zip(range(len(whole) - 1, -1, -1), whole, strict=True):
                yield line
            start.append(rest)
            before, held, quotes = held, held + len(rest), quotes + rest.count(b'"')
            if held > LONGEST:
                start.clear()
                if before <= LONGEST and not quoted:
                    yield TooLong()
        if held > LONGEST and quoted:
            yield TooLong(b'"' * (quotes % 2))
        elif last := b"".join(start):
            yield last

    def chunks(self, encoding: str | None = None) -> Iterator[bytes]:
        """Yield the unpacked content as UTF-8."""
        handle = self._handle
        if encoding is not None:
            from fastflow.files.read.encodings import Recoded

            handle = Recoded(handle, encoding)
        while chunk := handle.read1(CHUNK):
            if self.digest is not None:
                self.digest.update(chunk)
            yield chunk

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self.file.fileno())
        except OSError:  # io.UnsupportedOperation: no file descriptor
            return None
        return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def _open(self, path: str) -> BinaryIO:
        if path != "-":
            return open(path, "rb")
        if sys.stdin is None:
            raise FastflowError("standard input is closed; name a file instead of -")
        return sys.stdin.buffer

    def _unpack(self) -> Readable:
        if not self.path.endswith(PACKED):
            return self.file  # type: ignore[return-value]
        from fastflow.files.read.compressed import unpack

        return unpack(self.path, self.file)


def without_packing(path: str) -> str:
    """Remove .gz or .zst from the end of ``path``."""
    return next((path.removesuffix(suffix) for suffix in PACKED if path.endswith(suffix)), path)


def _undecodable(error: UnicodeDecodeError, encoding: str | None) -> tuple[str, str, str]:
    fault = f"byte {error.start + 1} is not UTF-8" if encoding is None else f"holds bytes that are not {encoding}"
    other = "its" if encoding is None else "another"
    remedy = f"convert the file, name {other} --encoding, or use --errors replace"
    return fault, remedy, "--errors replace"
