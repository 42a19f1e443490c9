"""``fastflow embed``: files of texts in, a file of embeddings out, in constant memory and resumable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fastflow.console import say
from fastflow.files.checks import check_resumable, check_target, check_types
from fastflow.files.encoding import Encoder, open_store
from fastflow.files.parts.counting import Split, split_of
from fastflow.files.parts.manifest import check_beside, is_done, manifest_of
from fastflow.files.read.inputs import Input
from fastflow.files.read.records import Layout
from fastflow.files.read.sources import Row, Sources
from fastflow.files.reuse.store import Store
from fastflow.files.reuse.vector_cache import VectorCache
from fastflow.files.settings import Settings, Summary
from fastflow.files.unlike import Unlike
from fastflow.files.windows import characters, looked_at, one_text, windows
from fastflow.files.write.growing import growing
from fastflow.files.write.outputs import OutputFile
from fastflow.files.write.partial import State
from fastflow.files.write.printing import Block, StandardOutput, Terminal
from fastflow.files.write.writers import writer_for
from fastflow.progress import Progress
from fastflow.runtime import Runtime
from fastflow.streaming import WINDOW, windowed


def embed_file(
    runtime: Runtime,
    source: str | Sequence[str],
    target: Path | None,
    settings: Settings,
    resume: bool = False,
    quiet: bool = False,
    judge: bool = True,
    opened: Callable[[str], Input] = Input,
    given: Sequence[str] = (),
    cache: Path | None = None,
) -> Summary:
    """Embed the texts of ``source``, one path or several, into ``target`` (None: JSON Lines on standard output).

    The target appears only when whole. Rows that were finished before an error or an interruption stay in
    NAME.partial, to be continued with ``resume``; without it, a run replaces the rows that an earlier one left there.
    ``judge``: warn at the end if many texts are unlike the model's corpus, if the model can judge it and not ``quiet``.
    ``opened`` opens an input. ``given`` are the arguments of the command, for the manifest of a shard. ``cache`` is a
    file of vectors that other runs computed, and gets those of this one.
    """
    paths = [source] if isinstance(source, str) else list(source)
    check_target(target, paths, settings, resume, cache)
    with Sources(paths, opened) as sources:
        types = check_types(sources, target, settings)
        if resume:
            check_resumable(sources)
        split = None if settings.shard is None else split_of(sources, settings.layout, settings.shard)
        if target is None:
            with open_store(runtime, settings, cache, None) as store:
                return _run(runtime, sources, _standard_output(), None, settings, split, 0, quiet, judge, store)
        key = numbers_of(runtime, settings.precision, settings.normalize)
        options = vars(settings) | {"layout": settings.layout._asdict()}
        if runtime.backend == "cpu":  # no size of batch changes its bits: a run may go on with another
            options["batch_tokens"] = None
        state, part = State(target, sources.identity, key | {"options": options}, paths), None
        if settings.shard is not None and split is not None:
            part = manifest_of(target, settings.shard, paths, split.inputs, key | {"options": options}, list(given))
            check_beside(target, part)
            if not quiet:
                say(f"fastflow: {part.describe()}")
            if resume and is_done(target, part):
                state.forget()  # of a run that was killed right after the part got its name
                return Summary(resumed=split.stop - split.start)
        with open_store(runtime, settings, cache, target) as store, writer_for(target)(target, key) as writer:
            writer.types, writer.id_field = types, settings.layout.id_field
            writer.about = {"dim": settings.dim or runtime.dim, "truncate_dim": settings.dim, "prompt": settings.prompt}
            if part is not None:
                begun, writer.of_shard = part, True
                writer.started = lambda: begun.write(target)
                writer.seal = lambda whole: begun.sealed(whole).write(target)
            with growing(writer, state, resume) as rows:
                return _run(runtime, sources, writer, state, settings, split, rows, quiet, judge, store)


def texts_of(sources: Sources, settings: Settings) -> Iterator[str]:
    """The texts as they are embedded, the prompt before each; empty ones are left out."""
    for row in sources.rows(settings.layout):
        if (text := one_text(row)).strip():
            yield (settings.prompt or "") + text


def numbers_of(runtime: Runtime, precision: str, normalize: bool) -> dict[str, Any]:
    """The settings that decide the numbers of a row and that the output records."""
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
    source: Sources,
    writer: OutputFile | StandardOutput,
    state: State | None,
    settings: Settings,
    split: Split | None,
    skip: int,
    quiet: bool,
    judge: bool,
    store: Store | None,
) -> Summary:
    s, summary = settings, Summary(resumed=skip)
    unlike = Unlike(runtime.likelihood) if judge and not quiet and runtime.likelihood is not None else None
    rows = source.rows(s.layout) if split is None else _part(source, s.layout, split)
    if isinstance(writer, OutputFile):
        for done in windowed(islice(rows, skip), WINDOW, characters):
            writer.skip(_block(done, [], None, None, s))
    encoder = Encoder(
        runtime, settings, settings.log_prob or (unlike is not None and not runtime.overlaps), WINDOW, store
    )
    coming = windows(rows, runtime, source, s, WINDOW)
    if not quiet:
        coming = looked_at(coming, runtime, s.prompt, unlike if not encoder.scored else None)
    # an empty input still gives a file of the right width and dtype
    writer.write(_block([], [], *encoder([]), s))
    shown = not quiet and not isinstance(writer, Terminal)
    with Progress("embed", None, "texts", shown, share=source.share()) as progress:
        for (of_rows, texts, share), made in encoder.over(coming, source):
            writer.write(_block(of_rows, texts, *made, s))
            if unlike is not None and made.log_probs is not None:
                unlike.look(texts, made.log_probs)
            if state is not None and isinstance(writer, OutputFile):
                state.save(writer.rows, writer.sync())
            summary.texts += len(texts)
            summary.empty += sum(not text.strip() for text in texts)
            progress.advance(len(texts), share=share)
    writer.finish()
    summary.cut, summary.reused = encoder.cut, encoder.reused
    summary.cache = store.describe() if isinstance(store, VectorCache) else ""
    if unlike is not None and (warning := unlike.warning()):
        say(f"fastflow: {warning}")
    return summary


def _block(rows: Sequence[Row], texts: Sequence[str], vectors: Any, log_probs: Any, s: Settings) -> Block:
    """The rows as they are written; without vectors those that were written before."""
    ids = None if s.layout.id_field is None else [row.record.id for row in rows]
    kept = {name: [row.record.kept[at] for row in rows] for at, name in enumerate(s.layout.keep)}
    return Block([row.number for row in rows], texts, ids, vectors, log_probs if s.log_prob else None, kept)


def _part(source: Sources, layout: Layout, split: Split) -> Iterator[Row]:
    """The rows that belong to the shard."""
    return islice(source.rows(layout, split.start, split.counts), split.stop - split.start)
