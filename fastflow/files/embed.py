"""``fastflow embed``: a file of texts in, a file of embeddings out, in constant memory and resumable."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from fastflow.files.records import Identity, Record
from fastflow.files.settings import Settings, Summary
from fastflow.files.texts import records_of
from fastflow.files.unlike import Unlike
from fastflow.model.fragmentation import unsuited
from fastflow.progress import Progress
from fastflow.runtime import Runtime
from fastflow.streaming import WINDOW

REMEMBERED = 100_000  # distinct texts whose vectors --dedupe keeps at hand


def embed_file(
    runtime: Runtime,
    source: str,
    target: Path | None,
    settings: Settings,
    resume: bool = False,
    quiet: bool = False,
    judge: bool = True,
    opened: Callable[[str], Input] = Input,
) -> Summary:
    """Embed the texts of ``source`` into ``target`` (None: JSON Lines on standard output).

    The target appears only when whole. Rows that were finished before an error or an interruption stay in
    NAME.partial, to be continued with ``resume``; without it, a run replaces the rows that an earlier one left there.
    ``judge``: say at the end if many texts are unlike the model's corpus, where the model knows and not ``quiet``.
    ``opened`` opens the input.
    """
    check_target(target, source, settings, resume)
    if target is None:
        with opened(source) as texts:
            return _run(runtime, texts, _standard_output(), None, settings, 0, quiet, judge)
    with opened(source) as texts:
        if resume:
            check_resumable(texts)
        key = numbers_of(runtime, settings.precision, settings.normalize)
        state = State(target, texts.identity, key | {"options": vars(settings) | {"layout": settings.layout._asdict()}})
        with writer_for(target)(target, key) as writer, growing(writer, state, resume) as rows:
            summary = _run(runtime, texts, writer, state, settings, rows, quiet, judge)
    return summary


def check_target(target: Path | None, source: str, settings: Settings, resume: bool) -> None:
    """Raise for an output that cannot be written as ``settings`` ask, before anything is computed."""
    if target is None:
        if resume:
            raise UsageError("--resume needs an output file: -o OUT")
        return
    kind = writer_for(target)
    if settings.layout.id_field is not None and not kind.keeps_ids:
        raise UsageError(
            f"{target}: a {target.suffix} file has no place for ids; write .npz or .jsonl, or leave out --id-field"
        )
    if settings.log_prob and not kind.keeps_log_prob:
        raise UsageError(
            f"{target}: a {target.suffix} file has no place for log_prob; write .npz, .safetensors or .jsonl, or leave "
            "out --log-prob"
        )
    check_output(target, source)
    if resume:
        check_unfinished(target)


def check_resumable(source: Input) -> None:
    """Raise for an input that cannot be read again from its start."""
    if source.identity is None:
        what = "standard input" if source.path == "-" else f"{source.path}, which is not a file,"
        raise UsageError(f"--resume cannot reread {what}; give a file")


def texts_of(source: Input, settings: Settings) -> Iterator[str]:
    """The texts as they are embedded, the prompt before each; empty ones are left out."""
    for record in records_of(source, settings.layout):
        if (text := _one_text(record, source.path)).strip():
            yield (settings.prompt or "") + text


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
    judge: bool,
) -> Summary:
    s, summary = settings, Summary(resumed=skip)
    unlike = Unlike(runtime.likelihood) if judge and not quiet and runtime.likelihood is not None else None
    records = _sharded(records_of(source, s.layout), s.shard)
    while skip and isinstance(writer, OutputFile) and (done := list(islice(records, min(skip, WINDOW)))):
        writer.skip([row for row, _ in done], _ids([record for _, record in done], s))
        skip -= len(done)
    encoder = _Encoder(runtime, settings, settings.log_prob or (unlike is not None and not runtime.overlaps))
    windows = _windows(records, runtime, source, s)
    if not quiet:
        windows = _looked_at(windows, runtime, s.prompt, unlike if not encoder.scored else None)
    made = encoder([])
    writer.write(
        Block([], [], [], made.vectors, made.log_probs if s.log_prob else None)
    )  # an empty input still gives a file of the right width and dtype
    before = runtime.truncated
    shown = not quiet and not isinstance(writer, Terminal)
    with Progress("embed", None, "texts", shown, share=source.share()) as progress:
        for (rows, of_rows, texts, share), made in encoder.over(windows, source):
            writer.write(Block(rows, texts, _ids(of_rows, s), made.vectors, made.log_probs if s.log_prob else None))
            if unlike is not None and made.log_probs is not None:
                unlike.look(texts, made.log_probs)
            if state is not None and isinstance(writer, OutputFile):
                state.save(writer.rows, writer.sync())
            summary.texts += len(texts)
            summary.empty += sum(not text.strip() for text in texts)
            progress.advance(len(texts), share=share)
    writer.finish()
    summary.cut = runtime.truncated - before
    if unlike is not None and (warning := unlike.warning()):
        say(f"fastflow: {warning}")
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


def _looked_at(
    windows: Iterator[Window], runtime: Runtime, prompt: str | None, unlike: Unlike | None
) -> Iterator[Window]:
    """``windows``, with a warning if the texts of the first do not suit the encoder's vocabulary; ``unlike`` takes a
    look at the first too, where log-densities cost another pass of the encoder.
    """
    for number, window in enumerate(windows):
        if number == 0 and (warning := unsuited(runtime.tokenize, window.texts)):
            say(f"fastflow: WARNING: {warning}")
        if number == 0 and unlike is not None:
            unlike.look(window.texts, runtime.log_prob(window.texts, prompt=prompt))
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


class Made(NamedTuple):
    """What is made of texts: vectors (b, D'), and log-densities (b,) where they are needed."""

    vectors: NDArray[Any]
    log_probs: NDArray[np.float64] | None


class _Encoder:
    """texts -> vectors with the run's options; with dedupe, a text seen among the last REMEMBERED costs nothing.

    ``scored``: with log-densities.
    """

    def __init__(self, runtime: Runtime, settings: Settings, scored: bool) -> None:
        self._runtime, self._settings, self.scored = runtime, settings, scored
        self._seen: dict[str, tuple[Any, ...]] = {}

    def over(self, windows: Iterator[Window], source: Input) -> Iterator[tuple[Window, Made]]:
        """Each window with what is made of it; of a file without dedupe in one stream, so that the next can be
        tokenised meanwhile.
        """
        if self._settings.dedupe or source.identity is None:
            yield from ((window, self(window.texts)) for window in windows)
            return
        coming: deque[Window] = deque()

        def texts() -> Iterator[str]:
            for window in windows:
                coming.append(window)
                yield from window.texts

        for made in self._stream(texts()):
            yield coming.popleft(), made

    def __call__(self, texts: Sequence[str]) -> Made:
        if not self._settings.dedupe:
            return self._encode(texts)
        new = [text for text in dict.fromkeys(texts) if text not in self._seen]
        made = self._encode(new)
        fresh = dict(zip(new, zip(*(part for part in made if part is not None), strict=True), strict=True))
        out = [fresh[text] if text in fresh else self._seen[text] for text in texts]
        self._seen |= fresh
        for text in list(islice(self._seen, max(0, len(self._seen) - REMEMBERED))):
            del self._seen[text]
        if not out:
            return self._encode([])
        return Made(np.stack([row[0] for row in out]), np.array([row[1] for row in out]) if self.scored else None)

    def _encode(self, texts: Sequence[str]) -> Made:
        s = self._settings
        none = stored(self._runtime.encode([], None, s.normalize, True, False, s.precision, s.dim))
        parts = [Made(none, np.zeros(0)), *self._stream(texts)]
        scores = np.concatenate([part.log_probs for part in parts if part.log_probs is not None])
        return Made(np.concatenate([part.vectors for part in parts]), scores if self.scored else None)

    def _stream(self, texts: Iterable[str]) -> Iterator[Made]:
        """What is made of every WINDOW texts."""
        s = self._settings
        options: dict[str, Any] = {
            "normalize_embeddings": s.normalize, "precision": s.precision, "truncate_dim": s.dim, "prompt": s.prompt,
            "batch_tokens": s.batch_tokens, "window": WINDOW,
        }  # fmt: skip
        if not self.scored:
            return (Made(stored(z), None) for _, z in self._runtime.stream(texts, **options))
        return (Made(stored(z), scores) for _, z, scores in self._runtime.stream_with_log_prob(texts, **options))


def stored(vectors: NDArray[Any]) -> NDArray[Any]:
    """As --precision says: float64 is for computing only."""
    return vectors.astype(np.float32) if vectors.dtype == np.float64 else vectors
