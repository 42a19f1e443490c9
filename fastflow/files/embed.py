"""``fastflow embed``: a file of texts in, a file of embeddings out, in constant memory and resumable."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.console import say
from fastflow.errors import FastflowError, UsageError
from fastflow.files.growing import growing
from fastflow.files.inputs import Input
from fastflow.files.outputs import OutputFile, writer_for
from fastflow.files.partial import State, check_output, check_unfinished
from fastflow.files.printing import Block, StandardOutput, Terminal
from fastflow.files.records import Identity, Layout, Record
from fastflow.files.texts import records_of
from fastflow.model.fragmentation import unsuited
from fastflow.progress import Progress
from fastflow.runtime import Runtime
from fastflow.streaming import WINDOW

REMEMBERED = 100_000  # distinct texts whose vectors --dedupe keeps at hand


@dataclass(frozen=True)
class Settings:
    """The options of ``fastflow embed`` that shape rows: all of them must agree for a run to be resumed."""

    layout: Layout = field(default_factory=Layout)
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
    """The counts of a run."""

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

    The target appears only when whole. Rows that were finished before an error or an interruption stay in
    NAME.partial, to be continued with ``resume``; without it, a run replaces the rows that an earlier one left there.
    """
    if target is None:
        if resume:
            raise UsageError("--resume needs an output file: -o OUT")
        with Input(source) as texts:
            return _run(runtime, texts, _standard_output(), None, settings, 0, quiet)
    kind = writer_for(target)
    if settings.layout.id_field is not None and not kind.keeps_ids:
        raise UsageError(
            f"{target}: a {target.suffix} file has no place for ids; write .npz or .jsonl, or leave out --id-field"
        )
    check_output(target, source)
    if resume:
        check_unfinished(target)
    with Input(source) as texts:
        if resume and texts.identity is None:
            what = "standard input" if source == "-" else f"{source}, which is not a file,"
            raise UsageError(f"--resume cannot reread {what}; give a file")
        key = numbers_of(runtime, settings.precision, settings.normalize)
        state = State(target, texts.identity, key | {"options": vars(settings) | {"layout": settings.layout._asdict()}})
        with kind(target, key) as writer, growing(writer, state, resume) as rows:
            summary = _run(runtime, texts, writer, state, settings, rows, quiet)
    return summary


def numbers_of(runtime: Runtime, precision: str, normalize: bool) -> dict[str, Any]:
    """The settings that decide the numbers of a row, as far as the output records it."""
    return {
        "fingerprint": runtime.fingerprint,
        "backend": runtime.backend,
        "dtype": str(runtime.info()["dtype"]),
        "precision": precision,
        "normalized": normalize,
    }


def _standard_output() -> StandardOutput:
    return Terminal() if sys.stdout is not None and sys.stdout.isatty() else StandardOutput()


def _run(
    runtime: Runtime,
    source: Input,
    writer: OutputFile | StandardOutput,
    state: State | None,
    settings: Settings,
    skip: int,
    quiet: bool,
) -> Summary:
    s, summary = settings, Summary(resumed=skip)
    records = _sharded(records_of(source, s.layout), s.shard)
    while skip and isinstance(writer, OutputFile) and (done := list(islice(records, min(skip, WINDOW)))):
        writer.skip([row for row, _ in done], _ids([record for _, record in done], s))
        skip -= len(done)
    encoder = _Encoder(runtime, settings)
    windows = _windows(records, runtime, source, s)
    if not quiet:
        windows = _looked_at(windows, runtime)
    writer.write(Block([], [], [], encoder([])))  # an empty input still gives a file of the right width and dtype
    before = runtime.truncated
    shown = not quiet and not isinstance(writer, Terminal)
    with Progress("embed", None, "texts", shown, share=source.share()) as progress:
        for (rows, of_rows, texts, share), vectors in encoder.over(windows, source):
            writer.write(Block(rows, texts, _ids(of_rows, s), vectors))
            if state is not None and isinstance(writer, OutputFile):
                state.save(writer.rows, writer.sync())
            summary.texts += len(texts)
            summary.empty += sum(not text.strip() for text in texts)
            progress.advance(len(texts), share=share)
    writer.finish()
    summary.cut = runtime.truncated - before
    return summary


class Window(NamedTuple):
    """Texts that are embedded together; ``share`` of the input's bytes had been read with the last of them."""

    rows: list[int]  # of the input
    records: list[Record]
    texts: list[str]
    share: float | None


def _windows(records: Iterator[tuple[int, Record]], runtime: Runtime, source: Input, s: Settings) -> Iterator[Window]:
    """WINDOW records after another, fewer where a pipe has no more for now; raises for a text that is too long, if
    that is an error.
    """
    while window := list(_while_ready(islice(records, WINDOW), source)):
        texts = [_one_text(record, source.path) for _, record in window]
        if s.truncate == "error" and len(cut := runtime.tokenize([(s.prompt or "") + t for t in texts]).cut):
            line = window[cut[0]][1].line
            raise FastflowError(
                f"{source.path}, line {line}: longer than the model's {runtime.info()['max_length']} tokens"
            )
        yield Window([row for row, _ in window], [record for _, record in window], texts, source.share())


def _looked_at(windows: Iterator[Window], runtime: Runtime) -> Iterator[Window]:
    """``windows``, with a warning if the texts of the first do not suit the encoder's vocabulary."""
    for number, window in enumerate(windows):
        if number == 0 and (warning := unsuited(runtime.tokenize, window.texts)):
            say(f"fastflow: WARNING: {warning}")
        yield window


def _while_ready(records: Iterator[tuple[int, Record]], source: Input) -> Iterator[tuple[int, Record]]:
    for record in records:
        yield record
        if source.waits():
            return


def _ids(records: Sequence[Record], settings: Settings) -> list[Identity] | None:
    return None if settings.layout.id_field is None else [record.id for record in records]


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

    def over(self, windows: Iterator[Window], source: Input) -> Iterator[tuple[Window, NDArray[Any]]]:
        """Each window with its vectors; of a file without dedupe in one stream, so that the next can be tokenised
        meanwhile.
        """
        if self._settings.dedupe or source.identity is None:
            yield from ((window, self(window.texts)) for window in windows)
            return
        coming: deque[Window] = deque()

        def texts() -> Iterator[str]:
            for window in windows:
                coming.append(window)
                yield from window.texts

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
        return np.concatenate([stored(none), *self._stream(texts)])

    def _stream(self, texts: Iterable[str]) -> Iterator[NDArray[Any]]:
        """A block of vectors for every WINDOW texts."""
        s = self._settings
        blocks = self._runtime.stream(
            texts, normalize_embeddings=s.normalize, precision=s.precision, truncate_dim=s.dim, prompt=s.prompt,
            batch_tokens=s.batch_tokens, window=WINDOW,
        )  # fmt: skip
        return (stored(block) for _, block in blocks)


def stored(vectors: NDArray[Any]) -> NDArray[Any]:
    """As --precision says: float64 is for computing only."""
    return vectors.astype(np.float32) if vectors.dtype == np.float64 else vectors
