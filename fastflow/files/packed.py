"""Reading files that are packed, .gz or .zst, in constant memory; one that ends too early is an error."""

from __future__ import annotations

import gzip
from typing import Any, BinaryIO, Protocol

from fastflow.errors import missing_extra

SUFFIXES = (".gz", ".zst")
PIECE = 1024  # bytes that are unpacked at once: zstd makes at most 32,768 of each


class Readable(Protocol):
    """A file that gives what is there, as io.BufferedIOBase does."""

    def read1(self, size: int = -1, /) -> bytes:
        """The next bytes, b"" at the end."""


def unpacked(path: str, file: BinaryIO) -> Readable:
    """``file``, unpacked if the suffix of ``path`` says that it is packed."""
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    return Zstd(path, file) if path.endswith(".zst") else file  # type: ignore[return-value]


def without_packing(path: str) -> str:
    """``path`` without .gz or .zst at its end."""
    return next((path.removesuffix(suffix) for suffix in SUFFIXES if path.endswith(suffix)), path)


class Zstd:
    """The content of a .zst of one or more frames.

    The ``stream_reader`` of zstandard ends quietly where a file was cut off; here that is an EOFError, as gzip has it.
    Raises a FastflowError where zstandard is not installed.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise missing_extra("zstd", "zstandard", f"{path}: reading .zst") from None
        self._error, self._unpacker, self._file = zstandard.ZstdError, zstandard.ZstdDecompressor(), file
        self._frame: Any = None
        self._rest = b""  # read and not unpacked

    def read1(self, size: int = -1, /) -> bytes:
        """The content of the next piece, of any length; b"" at the end."""
        while piece := self._rest or self._file.read(PIECE):
            self._frame = self._frame or self._unpacker.decompressobj()
            try:
                content: bytes = self._frame.decompress(piece)
            except self._error as error:
                raise OSError(f"it is no zstd file, or damaged: {error}") from error
            self._rest = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
            if content:
                return content
        if self._frame is not None:
            raise EOFError("it ends before the end of its content")
        return b""
