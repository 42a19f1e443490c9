"""Read .gz and .zst in constant memory; a file that ends too early is an error."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, BinaryIO, Protocol

from fastflow.errors import missing_extra

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

    ``zstandard.stream_reader`` raises no error for a file cut short.
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
