"""An open input: a file, packed or not, or standard input."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import os
import select
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.files.read import LONGEST, RowFault

if TYPE_CHECKING:
    from typing_extensions import Self


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

        return unpack(self.path, self.file)


def without_packing(path: str) -> str:
    """Remove .gz or .zst from the end of ``path``."""
    return next((path.removesuffix(suffix) for suffix in PACKED if path.endswith(suffix)), path)


def _undecodable(error: UnicodeDecodeError, encoding: str | None) -> tuple[str, str, str]:
    fault = f"byte {error.start + 1} is not UTF-8" if encoding is None else f"holds bytes that are not {encoding}"
    other = "its" if encoding is None else "another"
    remedy = f"convert the file, name {other} --encoding, or use --errors replace"
    return fault, remedy, "--errors replace"


MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
CUT_SHORT = "the file is cut short; fetch it again"
PIECE = 1024  # packed bytes at a time: zstd makes at most 32,768 bytes of one
LARGEST_WINDOW = 1 << 27  # bytes that a zstd frame may look back, as in the zstd command


class Readable(Protocol):
    """A file with ``read1``, as io.BufferedIOBase has it."""

    def read1(self, size: int = -1, /) -> bytes:
        """Return the next bytes, b"" at the end."""


def unpack(path: str, file: BinaryIO) -> Readable:
    """Return ``file``, or a reader that unpacks it by the suffix of ``path``."""
    if path.endswith(".gz"):
        return Gzip(file)
    return Zstd(path, file) if path.endswith(".zst") else file  # type: ignore[return-value]


def _not_packed(suffix: str, file: BinaryIO) -> OSError:
    head = file.read(max(map(len, MAGIC.values()))) if file.seekable() and file.seek(0) == 0 else MAGIC[suffix]
    for other, magic in MAGIC.items():
        if other != suffix and head.startswith(magic):
            return OSError(f"it is packed as {other}, not as {suffix}; rename it to end in {other}")
    if not head.startswith(MAGIC[suffix]):
        return OSError(f"it is not packed as {suffix}; rename it without {suffix}")
    return OSError(f"its {suffix} is damaged; fetch it again")


class Gzip:
    """Reader of the content of a .gz; raises OSError if it is not a .gz, cut short or damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._unpacker = file, gzip.GzipFile(fileobj=file)

    def read1(self, size: int = -1, /) -> bytes:
        try:
            return self._unpacker.read1(size)
        except EOFError:
            raise OSError(CUT_SHORT) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise _not_packed(".gz", self._file) from error


class Zstd:
    """Reader of the content of a .zst; raises as ``Gzip``.

    ``zstandard.stream_reader``, unlike this class, accepts a file cut short.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise missing_extra("zstd", "zstandard", f"{path}: reading .zst") from None
        self._error, self._file = zstandard.ZstdError, file
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        self._frame: Any = None
        self._rest = b""  # packed bytes, read and not unpacked
        self._made = memoryview(b"")  # unpacked bytes, not returned yet

    def read1(self, size: int = -1, /) -> bytes:
        if not self._made:
            self._made = memoryview(self._content())
        given = self._made if size < 0 else self._made[:size]
        self._made = self._made[len(given) :]
        return bytes(given)

    def _content(self) -> bytes:
        while piece := self._rest or self._file.read(PIECE):
            self._frame = self._frame or self._unpacker.decompressobj()
            try:
                content: bytes = self._frame.decompress(piece)
            except self._error as error:
                raise _not_packed(".zst", self._file) from error
            self._rest = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
            if content:
                return content
        if self._frame is not None:
            raise OSError(CUT_SHORT)
        return b""


MARK = "fastflow.mark"  # the codec error handler that writes BAD for unreadable bytes
BAD = b"\xff"  # not a byte of UTF-8
DOMAINS = ("idna", "punycode")  # codecs of domain names, which cannot decode a file in pieces


def parse_encoding(given: str | None) -> str | None:
    """Return Python's codec of ``--encoding``, None for UTF-8; raises a UsageError."""
    if given is None:
        return None
    try:
        "a".encode(given)  # raises LookupError for a codec that is not for text, such as base64
        name = codecs.lookup(given).name
    except (LookupError, ValueError):
        name = ""
    if not name or name in DOMAINS:
        raise UsageError(f"--encoding {given}: Python knows no such encoding; name one such as cp1252 or utf-16")
    return None if name == "utf-8" else name


class Recoded:
    """Reader that converts ``file`` to UTF-8, with BAD for bytes that are not of ``encoding``."""

    def __init__(self, file: Readable, encoding: str) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)(MARK)

    def read1(self, size: int = -1) -> bytes:
        while chunk := self._file.read1(size):
            if text := self._decoder.decode(chunk):
                return text.encode("utf-8", MARK)
        return self._decoder.decode(b"", True).encode("utf-8", MARK)


def _mark(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeDecodeError):
        return "\udcff", error.end
    if isinstance(error, UnicodeEncodeError):
        return BAD * (error.end - error.start), error.end
    raise error


codecs.register_error(MARK, _mark)


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
