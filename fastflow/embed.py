"""``fastflow embed``: a file of texts in, a file of embeddings out, in constant memory and resumable."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.outputs import Block, OutputFile, StandardOutput, cannot_write, partial_path, writer_for
from fastflow.progress import Progress
from fastflow.runtime import WINDOW, Runtime
from fastflow.texts import Record, read_records

REMEMBERED = 100_000  # distinct texts whose vectors --dedupe keeps at hand


@dataclass(frozen=True)
class Settings:
    """The options of ``fastflow embed`` that shape rows: all of them must agree for a run to be resumed."""

    format: str | None = None
    text_field: str | None = None
    id_field: str | None = None
    errors: str = "strict"
    precision: str = "float32"
    dim: int | None = None
    normalize: bool = False
    batch_tokens: int | None = None
    dedupe: bool = False
    shard: tuple[int, int] = (1, 1)
    truncate: str = "right"
    prompt: str | None = None


@dataclass
class Summary:
    """What a run did."""

    texts: int = 0
    empty: int = 0
    resumed: int = 0
    cut: int = 0


def parse_shard(text: str) -> tuple[int, int]:
    """``I/N`` with 1 <= I <= N: this run takes rows I-1, I-1+N, I-1+2N, ..."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise UsageError(f"--shard {text}: must be I/N with I from 1 to N, such as 1/4")
    return int(part), int(parts)


def embed_file(
    runtime: Runtime, source: str, target: Path | None, settings: Settings, resume: bool = False, quiet: bool = False
) -> Summary:
    """Embed the texts of ``source`` into ``target`` (None: JSON Lines on standard output).

    On an error the partial file is removed, unless ``resume`` asked to keep it; the target appears only when whole.
    """
    if target is None:
        if resume:
            raise UsageError("--resume needs an output file: -o OUT")
        return _run(runtime, source, StandardOutput(), None, settings, 0, quiet)
    kind = writer_for(target)
    if resume and source == "-":
        raise UsageError("--resume cannot reread standard input; give a file")
    if source != "-" and target.exists() and os.path.exists(source) and target.samefile(source):
        raise UsageError(f"{target} is the input; choose another output with -o")
    state = _State(target, source, runtime, settings)
    rows, position = state.load() if resume else (0, None)
    writer = kind(target, state.key, position)
    try:
        summary = _run(runtime, source, writer, state, settings, rows, quiet)
    except BaseException:
        writer.discard(keep=resume)
        if not resume:
            state.remove()
        raise
    state.remove()
    return summary


class _State:
    """NAME.partial.json: how far a run got, and what it was a run of."""

    def __init__(self, target: Path, source: str, runtime: Runtime, settings: Settings) -> None:
        self.path = partial_path(target).with_name(partial_path(target).name + ".json")
        self._source = source
        self._options = vars(settings) | {"shard": list(settings.shard)}
        self.key = {
            "fingerprint": runtime.fingerprint,
            "backend": runtime.backend,
            "dtype": str(runtime.info()["dtype"]),
            "precision": settings.precision,
            "normalized": settings.normalize,
        }

    def load(self) -> tuple[int, int | None]:
        """(rows, bytes) to continue from; (0, None) when there is nothing yet. Raises if it was another run."""
        partial = self.path.with_suffix("")
        if not self.path.is_file() or not partial.is_file():
            return 0, None
        try:
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            same, rows, position = saved["run"] == self._identity(), int(saved["rows"]), int(saved["bytes"])
        except (ValueError, KeyError, TypeError) as error:
            raise FastflowError(f"{self.path} is damaged; remove it and {partial} to start anew") from error
        if not same or partial.stat().st_size < position:
            raise FastflowError(
                f"{partial} is from a run with another input, model or options; remove it and {self.path} to start anew"
            )
        return rows, position

    def save(self, rows: int, position: int) -> None:
        """Record that ``rows`` rows, ``position`` bytes, are safely written."""
        temporary = self.path.with_suffix(".json.tmp")
        content = json.dumps({"rows": rows, "bytes": position, "run": self._identity()})
        try:
            temporary.write_text(content, encoding="utf-8")
            temporary.replace(self.path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise cannot_write(self.path, error) from error

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _identity(self) -> dict[str, Any]:
        try:
            stat = os.stat(self._source)
        except OSError as error:
            raise FastflowError(f"{self._source} cannot be opened: {error.strerror}") from error
        return {"input": [stat.st_size, stat.st_mtime_ns], "options": self._options, **self.key}


def _run(
    runtime: Runtime,
    source: str,
    writer: OutputFile | StandardOutput,
    state: _State | None,
    settings: Settings,
    skip: int,
    quiet: bool,
) -> Summary:
    s, summary = settings, Summary(resumed=skip)
    records = _sharded(read_records(source, s.format, s.text_field, s.id_field, s.errors), s.shard)
    while skip and isinstance(writer, OutputFile) and (done := list(islice(records, min(skip, WINDOW)))):
        writer.skip([row for row, _ in done], [record.id for _, record in done])
        skip -= len(done)
    encoder = _Encoder(runtime, settings)
    writer.write(Block([], [], [], encoder([])))  # an empty input still gives a file of the right width and dtype
    before = runtime.truncated
    with Progress("embed", None, "texts", shown=not quiet) as progress:
        for (rows, of_rows, texts), vectors in encoder.over(_windows(records, runtime, source, s)):
            writer.write(Block(rows, texts, [record.id for record in of_rows], vectors))
            if state is not None and source != "-" and isinstance(writer, OutputFile):
                state.save(writer.rows, writer.sync())
            summary.texts += len(texts)
            summary.empty += sum(not text.strip() for text in texts)
            progress.advance(len(texts))
    writer.finish()
    summary.cut = runtime.truncated - before
    return summary


Window = tuple[list[int], list[Record], list[str]]  # input rows, their records, their texts


def _windows(records: Iterator[tuple[int, Record]], runtime: Runtime, source: str, s: Settings) -> Iterator[Window]:
    """WINDOW records after another; raises for a text that is too long, if that is an error."""
    while window := list(islice(records, WINDOW)):
        texts = [_one_text(record, source) for _, record in window]
        if s.truncate == "error" and len(cut := runtime.tokenize([(s.prompt or "") + t for t in texts]).cut):
            line = window[cut[0]][1].line
            raise FastflowError(f"{source}, line {line}: longer than the model's {runtime.info()['max_length']} tokens")
        yield [row for row, _ in window], [record for _, record in window], texts


def _sharded(records: Iterator[Record], shard: tuple[int, int]) -> Iterator[tuple[int, Record]]:
    """(input row, record) of the rows that belong to ``shard``."""
    return islice(enumerate(records), shard[0] - 1, None, shard[1])


def _one_text(record: Record, source: str) -> str:
    if len(record.texts) != 1:
        raise UsageError(f"{source} holds pairs of texts; choose one with --text-field sentence1 or sentence2")
    return record.texts[0]


class _Encoder:
    """texts -> vectors with the run's options; with dedupe, a text seen among the last REMEMBERED costs nothing."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        self._runtime, self._settings = runtime, settings
        self._seen: dict[str, NDArray[Any]] = {}

    def over(self, windows: Iterator[Window]) -> Iterator[tuple[Window, NDArray[Any]]]:
        """Each window with its vectors; without dedupe in one stream, so that the next can be tokenised meanwhile."""
        if self._settings.dedupe:
            yield from ((window, self(window[2])) for window in windows)
            return
        coming: deque[Window] = deque()

        def texts() -> Iterator[str]:
            for window in windows:
                coming.append(window)
                yield from window[2]

        for block in self._stream(texts()):
            yield coming.popleft(), block

    def __call__(self, texts: Sequence[str]) -> NDArray[Any]:
        if not self._settings.dedupe:
            return self._encode(texts)
        new = [text for text in dict.fromkeys(texts) if text not in self._seen]
        fresh = dict(zip(new, self._encode(new), strict=True))
        out = [fresh[text] if text in fresh else self._seen[text] for text in texts]
        self._seen |= fresh
        for text in list(islice(self._seen, max(0, len(self._seen) - REMEMBERED))):
            del self._seen[text]
        return np.stack(out) if out else self._encode([])

    def _encode(self, texts: Sequence[str]) -> NDArray[Any]:
        s = self._settings
        none = self._runtime.encode([], None, s.normalize, True, False, s.precision, s.dim)
        return np.concatenate([_stored(none), *self._stream(texts)])

    def _stream(self, texts: Iterable[str]) -> Iterator[NDArray[Any]]:
        """A block of vectors for every WINDOW texts."""
        s = self._settings
        blocks = self._runtime.stream(
            texts, normalize_embeddings=s.normalize, precision=s.precision, truncate_dim=s.dim, prompt=s.prompt,
            batch_tokens=s.batch_tokens, window=WINDOW,
        )  # fmt: skip
        return (_stored(block) for _, block in blocks)


def _stored(vectors: NDArray[Any]) -> NDArray[Any]:
    """As --precision says: float64 is for computing only."""
    return vectors.astype(np.float32) if vectors.dtype == np.float64 else vectors
