"""The settings of ``fastflow embed``, and its summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastflow.errors import UsageError
from fastflow.files.read.records import Layout

if TYPE_CHECKING:
    from fastflow.files.read.ranges import Ranges


@dataclass(frozen=True)
class Settings:
    """The options of ``fastflow embed`` that shape rows: all must agree for a run to be resumed."""

    layout: Layout = field(default_factory=Layout)
    precision: str = "float32"
    dim: int | None = None
    normalize: bool = False
    batch_tokens: int | None = None
    dedupe: bool = False
    shard: tuple[int, int] | None = None
    truncate: str = "right"
    prompt: str | None = None
    log_prob: bool = False
    ranges: Ranges | None = None

    def recorded(self) -> dict[str, Any]:
        """The options as a run records them, in JSON."""
        digest = None if self.ranges is None else self.ranges.sha256
        return vars(self) | {"layout": self.layout._asdict(), "ranges": digest}


@dataclass
class Summary:
    """The counts of a run."""

    texts: int = 0
    empty: int = 0
    resumed: int = 0
    cut: int = 0
    reused: int = 0  # texts whose pooled vector was there before
    cache: str = ""  # the content of --cache, in words


def parse_keep(given: Sequence[str]) -> tuple[str, ...]:
    """The fields that ``--keep a,b --keep c`` names, each once."""
    names = [name for each in given for name in each.split(",")]
    for name in names:
        if not name or names.count(name) > 1:
            raise UsageError(f"--keep {','.join(given)}: must name fields, each once, such as --keep title,url")
    return tuple(names)


def parse_shard(text: str) -> tuple[int, int]:
    """``I/N`` with 1 <= I <= N, the I-th of N parts; from 1, as people and xargs count them."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise UsageError(f"--shard {text}: must be I/N with I from 1 to N, such as 1/3")
    return int(part), int(parts)


def check_delimiter(given: str | None) -> str | None:
    """The character that ``--delimiter`` means, tab also as the two characters \\t; raises a UsageError for another."""
    if given is None or given in ("\\t", "tab"):
        return given and "\t"
    if len(given) != 1 or given in '"\r\n':
        raise UsageError(f"--delimiter {given!r}: must be one character that separates columns, such as ';' or '\\t'")
    return given
