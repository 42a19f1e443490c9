"""``fastflow embed`` and ``transform``: embed files of texts, calibrate vectors, in constant memory and resumable."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.console import say
from fastflow.errors import FastflowError, UsageError
from fastflow.files import EmbedConfig, Run, Summary, check_resumable, check_target, check_types, write_rows
from fastflow.files.read import InputFormat, Record, list_names
from fastflow.files.read.sources import Row, Sources, one_text
from fastflow.files.read.texts import unit_of
from fastflow.files.windows import Pace, WindowEncoder, characters, drop_float64, open_store, warn_if_unsuited, windows
from fastflow.files.write import Block, StandardOutput, Terminal
from fastflow.options import WINDOW, cut_windows
from fastflow.progress import Progress
from fastflow.runtime import Runtime
from fastflow.transforms.vectors import check_truncation

if TYPE_CHECKING:
    from fastflow.files.read.matrix import MatrixFile
    from fastflow.files.shards.manifest import Split
    from fastflow.files.vector_cache import VectorCache
    from fastflow.files.write.outputs import OutputFile
    from fastflow.files.write.partial import State

ROWS = 4096  # vectors of a block of transform


def embed_file(
    runtime: Runtime, source: str | Sequence[str], target: Path | None, settings: EmbedConfig, run: Run | None = None
) -> Summary:
    """Embed the texts of ``source`` into ``target`` (None: JSON Lines on standard output).

    Until it is whole its rows are in TARGET.partial, which ``resume`` continues.
    """
    run = run or Run()
    paths = [source] if isinstance(source, str) else list(source)
    check_target(target, paths, settings, run)
    check_truncation(settings.dim, runtime.session.width, "--dim")
    with Sources(paths, run.opened) as sources:
        sources.skippable = True
        types = check_types(sources, target, settings)
        if run.resume:
            check_resumable(sources)
        split = None
        if settings.shard is not None:
            from fastflow.files.shards.manifest import split_rows

            split = split_rows(sources, settings.layout, settings.shard)
        embedded = EmbedRun(runtime, sources, settings, split, run)
        if target is None:
            printer = Terminal if sys.stdout is not None and sys.stdout.isatty() else StandardOutput
            with open_store(runtime, settings, run.cache, None) as store:
                return embedded.into(printer(), None, 0, store)
        return embedded.into_file(target, types)


def texts_of(sources: Sources, settings: EmbedConfig) -> Iterator[str]:
    """Yield the texts that are not empty, with the prompt in front."""
    for row in sources.rows(settings.layout):
        if (text := one_text(row)).strip():
            yield (settings.prompt or "") + text


def numbers_of(runtime: Runtime, precision: str, normalize: bool) -> dict[str, Any]:
    """Return the model and settings that decide a vector."""
    return {
        "fingerprint": runtime.fingerprint,
        "backend": runtime.backend,
        "dtype": str(runtime.info()["dtype"]),
        "precision": precision,
        "normalized": normalize,
    }


def describe_file(runtime: Runtime, settings: EmbedConfig) -> dict[str, Any]:
    """Return the entries of a .db that ``numbers_of`` lacks."""
    return {
        "dim": settings.dim or runtime.dim,
        "truncate_dim": settings.dim,
        "prompt": settings.prompt,
        "id_field": settings.layout.id_field,
        "text_field": settings.layout.field,
        "model": runtime.session.packaged or os.path.abspath(runtime.session.model.path),
    }


def append_texts(
    path: Path,
    runtime: Runtime,
    texts: list[str],
    ids: Sequence[Any] | None,
    fields: Mapping[str, Sequence[Any]],
    run: dict[str, Any],
) -> dict[str, int]:
    """Embed ``texts`` and write them into the .db of a ``run``; return ``AppendedFile.counts``."""
    from fastflow.files.write.appending import AppendedFile

    if (ids is None) != (run["id_field"] is None):
        raise UsageError(f"{path} has {'no ids: leave ids out' if run['id_field'] is None else 'ids: give ids='}")
    layout = InputFormat(field=run["text_field"], id_field=run["id_field"], keep=tuple(fields))
    given = run["precision"], run["truncate_dim"], bool(run["normalized"])
    settings = EmbedConfig(layout, *given, prompt=run["prompt"])
    encoder = WindowEncoder(runtime, settings, WINDOW)

    def embed(at: Sequence[int]) -> Block:
        some = [texts[i] for i in at]
        named = {} if ids is None else {str(run["id_field"]): [ids[i] for i in at]}
        return Block(at, some, encoder(some), named, {name: [v[i] for i in at] for name, v in fields.items()})

    key = numbers_of(runtime, settings.precision, settings.normalize)
    with AppendedFile(path, key, layout, "text", False) as writer:
        writer.about = describe_file(runtime, settings)
        writer.write(embed([]))
        kept = zip(*fields.values(), strict=True) if fields else [()] * len(texts)
        records = zip(texts, ids or [None] * len(texts), kept, strict=True)
        rows = (Row(i, "Index.add", Record((text,), each, i, more)) for i, (text, each, more) in enumerate(records))
        for window in cut_windows(writer.pick_changed(rows, WINDOW), WINDOW, characters):
            writer.write(embed([row.number for row in window]))
        writer.finish()
    return writer.counts


class EmbedRun:
    """Reads and embeds the rows of ``source``, or only of the shard ``split``."""

    def __init__(self, runtime: Runtime, source: Sources, settings: EmbedConfig, split: Split | None, run: Run) -> None:
        self._runtime, self._source, self._settings, self._split, self._run = runtime, source, settings, split, run
        self._rows = source.rows(settings.layout) if split is None else _part(source, settings.layout, split)
        self._counts = Summary()

    def into(
        self, writer: OutputFile | StandardOutput, state: State | None, finished: int, store: VectorCache | None
    ) -> Summary:
        """Embed and write the rows after the first ``finished``."""
        named = self._run.cache is not None and self._settings.layout.id_field is not None
        if store is not None and (self._settings.only_new or named):
            self._rows = self._unknown(self._rows, store, store.since if state is None else state.since)
        shown = not self._run.quiet and not isinstance(writer, Terminal)
        total, about = self._expect() if shown else (None, False)
        progress = Progress("embed", total, "texts", shown, done=finished, about=about)
        self._encoder = WindowEncoder(self._runtime, self._settings, WINDOW, store, progress.within)
        before = cut_windows(islice(self._rows, finished), WINDOW, characters)
        write_rows(self._blocks(), writer, state, progress, (self._block(rows, [], None) for rows in before))
        counts = self._counts
        counts.resumed, counts.cut, counts.reused = finished, self._encoder.cut, self._encoder.reused
        counts.cache = "" if store is None or self._run.cache is None else store.describe()
        counts.unused = not isinstance(writer, StandardOutput) and writer.unused
        skipped = self._source.skipped
        counts.skipped, counts.skipped_rows = skipped.count, skipped.places
        if counts.skipped:
            where = None if isinstance(writer, StandardOutput) else writer.target
            say(f"fastflow: WARNING: {skipped.describe(where)}")
        return counts

    def into_file(self, target: Path, types: dict[str, Any]) -> Summary:
        from fastflow.files.write.outputs import growing, writer_for
        from fastflow.files.write.partial import State

        runtime, settings, run, paths = self._runtime, self._settings, self._run, self._source.paths
        key = numbers_of(runtime, settings.precision, settings.normalize)
        options = settings.to_record()
        if runtime.backend == "cpu":  # here the batch changes no bit of a vector
            options["batch_tokens"] = None
        if run.append:
            return self._append(target, key)
        state, part = State(target, self._source.identity, key | {"options": options}, paths), None
        if settings.shard is not None and self._split is not None:
            from fastflow.files.shards.manifest import check_beside, is_done, manifest_of

            found, whole_run = self._split, key | {"options": options}
            part = manifest_of(target, settings.shard, paths, found.inputs, whole_run, list(run.given))
            check_beside(target, part)
            if not run.quiet:
                say(f"fastflow: {part.describe()}")
            if run.resume and is_done(target, part):
                state.forget()  # left by a run killed after renaming the part
                return Summary(resumed=found.stop - found.start, finished=True)
        elif run.resume and (before := state.is_done()) is not None:
            return Summary(resumed=before, finished=True)
        with open_store(runtime, settings, run.cache, target) as store, writer_for(target)(target, key) as writer:
            writer.types, writer.skipped, writer.words = types, self._source.skipped, run.words
            writer.about = describe_file(runtime, settings)
            if part is not None:
                begun, writer.of_shard = part, True
                writer.started = lambda: begun.write(target)
                writer.seal = lambda whole: begun.add_hash(whole, writer.skipped.count).write(target)
            if store is not None and settings.only_new:
                state.since = store.since
            with growing(writer, state, run.resume) as rows:
                return self.into(writer, state, rows, store)

    def _append(self, target: Path, key: dict[str, Any]) -> Summary:
        from fastflow.files.write.appending import AppendedFile

        layout, run, source = self._settings.layout, self._run, self._source
        unit, together = unit_of(source.paths[0], layout), 1 if source.identity is None else WINDOW
        with (
            open_store(self._runtime, self._settings, run.cache, target) as store,
            AppendedFile(target, key, layout, unit, run.delete_missing) as writer,
        ):
            writer.about, writer.skipped = describe_file(self._runtime, self._settings), source.skipped
            writer.words = run.words
            self._rows = writer.pick_changed(self._rows, together)
            counts = self.into(writer, None, 0, store)
            counts.appended = writer.counts
            return counts

    def _blocks(self) -> Iterator[Block]:
        yield self._block([], [], self._encoder([]))
        s, counts = self._settings, self._counts
        pace = Pace(WINDOW, self._runtime.backend == "cpu")
        coming = windows(self._rows, self._runtime, self._source, s, pace)
        if self._run.started is not None:
            first = list(islice(coming, 1))  # its errors are raised before ``started`` prints
            self._run.started()
            if self._source.fields:
                say(f"fastflow: text field: {list_names(list(self._source.fields))}")
            coming = chain(first, coming)
        start = time.monotonic()
        if not self._run.quiet:
            coming = warn_if_unsuited(coming, self._runtime)
        for (rows, texts), vectors in self._encoder.over(coming, self._source, pace.steady):
            pace.done(len(rows))
            yield self._block(rows, texts, vectors)
            counts.texts += len(texts)
            counts.empty += sum(not text.strip() for text in texts)
            counts.seconds = time.monotonic() - start

    def _unknown(self, rows: Iterator[Row], store: VectorCache, since: int | None) -> Iterator[Row]:
        from fastflow.files.vector_cache import keys_of

        by_id = self._settings.layout.id_field is not None
        together = 1 if self._source.identity is None else WINDOW  # do not wait for more rows of a pipe
        for some in cut_windows(rows, together, characters):
            texts = list(map(one_text, some))
            if by_id:
                texts = [json.dumps([row.record.id, text]) for row, text in zip(some, texts, strict=True)]
            keys = keys_of(texts, store.decided)
            if by_id:
                store.note(keys)
            known = store.known(keys, since or 0) if self._settings.only_new else set()
            yield from (row for row, key in zip(some, keys, strict=True) if key not in known)
            self._counts.known += sum(key in known for key in keys)

    def _expect(self) -> tuple[int | None, bool]:
        if self._settings.only_new or self._run.append:
            return None, False
        if self._split is not None:
            return self._split.stop - self._split.start, False
        return self._source.expected(self._settings.layout)

    def _block(self, rows: Sequence[Row], texts: Sequence[str], vectors: Any) -> Block:
        layout = self._settings.layout
        ids = {} if layout.id_field is None else {layout.id_field: [row.record.id for row in rows]}
        kept = {name: [row.record.kept[at] for row in rows] for at, name in enumerate(layout.keep)}
        return Block([row.number for row in rows], texts, vectors, ids, kept)


def _part(source: Sources, layout: InputFormat, split: Split) -> Iterator[Row]:
    yield from source.rows(layout, split.start, split.counts, split.stop)
    source.current.check_unchanged()  # the reader checks only at the input's end


def transform_file(runtime: Runtime, source: str, target: Path, config: EmbedConfig, run: Run | None = None) -> Summary:
    """Calibrate the vectors of ``source`` (.npy) into ``target``, which appears only when whole.

    Raises a FastflowError for another width, and for NaN or infinity, naming the row.
    """
    from fastflow.files.read.matrix import MatrixFile
    from fastflow.files.write.outputs import NpyFile, growing, writer_for
    from fastflow.files.write.partial import State

    run = run or Run()
    if writer_for(target) is not NpyFile:
        parts = "lines" if target.suffix == ".jsonl" else "rows"
        raise UsageError(
            f"{target}: the {parts} of a {target.suffix} file hold texts, and these are vectors; write .npy"
        )
    check_target(target, [source], config, run)
    check_truncation(config.dim, runtime.session.width, "--dim")
    with MatrixFile(source) as vectors:
        takes = runtime.info()
        if (dim := vectors.matrix.shape[1]) != takes["pooled_dim"]:
            raise FastflowError(
                f"{source} holds vectors of {dim} numbers, and the model {takes['model']} takes {takes['pooled_dim']}: "
                "give the vectors that the model was fitted to, or another -m"
            )
        key = numbers_of(runtime, config.precision, config.normalize)
        options = {name: config.to_record()[name] for name in ("precision", "dim", "normalize")}
        state = State(target, vectors.identity, key | {"options": options})
        if run.resume and (before := state.is_done()) is not None:
            return Summary(resumed=before, finished=True)
        with NpyFile(target, key) as writer, growing(writer, state, run.resume) as rows:
            if run.started is not None:
                run.started()
            progress = Progress("transform", len(vectors.matrix), "vectors", shown=not run.quiet, done=rows)
            earlier = Block(range(rows), [], np.zeros((0, 0)))
            write_rows(_transform(runtime, vectors, config, rows), writer, state, progress, [earlier])
            return Summary(texts=writer.rows - rows, resumed=rows, unused=writer.unused)


def _transform(runtime: Runtime, source: MatrixFile, s: EmbedConfig, first: int) -> Iterator[Block]:
    options: dict[str, Any] = {"normalize_embeddings": s.normalize, "precision": s.precision, "truncate_dim": s.dim}

    def calibrate(vectors: NDArray[Any]) -> NDArray[Any]:
        return drop_float64(runtime.transform(vectors, **options))

    yield Block([], [], calibrate(np.zeros((0, source.matrix.shape[1]), np.float32)))
    for vectors in source.blocks(ROWS, first):
        rows = range(first, first + len(vectors))
        try:
            made = calibrate(vectors)
        except FastflowError as error:
            raise FastflowError(f"{source.path}, rows {rows[0]} to {rows[-1]}: {error}") from error
        yield Block(rows, [], made)
        first = rows.stop
