"""Convert inputs of other encodings to UTF-8, and mark bytes that cannot be decoded."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from fastflow.errors import UsageError

if TYPE_CHECKING:
    from fastflow.files.read.compressed import Readable

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
