"""``Block``, rows with their vectors, and its printing as JSON Lines or short lines."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastflow.console import check_stdout, describe_lost_stdout, say
from fastflow.files.read import Identity, plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIELDS = ("index", "text", "embedding")
FIRST = 3  # numbers of a vector that a terminal shows


class Block(NamedTuple):
    """Consecutive rows: numbers, texts, vectors (b, D'); ids and kept fields by name."""

    rows: Sequence[int]
    texts: Sequence[str]
    vectors: NDArray[Any]
    ids: Mapping[str, Sequence[Identity]] = {}
    kept: Mapping[str, Sequence[Any]] = {}

    def columns(self) -> dict[str, Sequence[Any]]:
        return {**self.ids, **self.kept}


def json_lines(block: Block) -> str:
    """Return a line of JSON for each row; nine significant digits restore float32 exactly."""
    lines = []
    for at, (row, text, vector) in enumerate(zip(block.rows, block.texts, block.vectors, strict=True)):
        head = {"index": row} | {name: ids[at] for name, ids in block.ids.items()}
        kept = {name: plain(values[at]) for name, values in block.kept.items()}
        start = json.dumps(head | {"text": text} | kept, ensure_ascii=False)[:-1]
        lines.append(f'{start}, "embedding": {number_list(vector)}}}\n')
    return "".join(lines)


def number_list(vector: NDArray[Any]) -> str:
    """Return a vector as a JSON list."""
    if vector.dtype.kind != "f":
        return str(vector.tolist())
    return f"[{', '.join(['%.9g' % v for v in vector.tolist()])}]"  # noqa: UP031 (twice as fast as format)


def as_text(values: Iterable[Any]) -> list[str | None]:
    """Return values as text: None and strings as they are, others as JSON."""
    return [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in map(plain, values)]


class StandardOutput:
    """Prints JSON Lines, in UTF-8 whatever the locale."""

    own = FIELDS

    def __init__(self) -> None:
        check_stdout()

    def write(self, block: Block) -> None:
        """Print the rows; raises BrokenPipeError if the reader ended."""
        try:
            sys.stdout.buffer.write(self.encode(block).encode("utf-8"))
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise describe_lost_stdout(error) from error

    def encode(self, block: Block) -> str:
        return json_lines(block)

    def finish(self) -> None:
        """End the output; every block was flushed."""


class Terminal(StandardOutput):
    """Prints a short line for each row."""

    def encode(self, block: Block) -> str:
        rest = f"… {block.vectors.shape[1]} numbers]"
        room = max(20, shutil.get_terminal_size().columns - len("1234  ") - len(" [") - 7 * FIRST - len(rest))
        lines = []
        for row, text, vector in zip(block.rows, block.texts, block.vectors, strict=True):
            plain = "".join(c if c.isprintable() else " " for c in text[: room + 1])
            start = plain if len(plain) <= room else plain[: room - 1] + "…"
            numbers = "".join(f"{v:6.2f} " for v in vector[:FIRST].tolist())
            lines.append(f"{row:>4}  {start:<{room}} [{numbers}{rest}\n")
        return "".join(lines)

    def finish(self) -> None:
        say("fastflow: rows are shortened on a terminal; -o FILE, or a pipe, gets whole vectors")
