"""``fastflow transform``: calibrate the vectors of a .npy file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files import Run, Settings, Summary, check_target, write_rows
from fastflow.files.embed import numbers_of
from fastflow.files.read.matrix import MatrixFile
from fastflow.files.windows import drop_float64
from fastflow.files.write import Block
from fastflow.files.write.outputs import NpyFile, growing
from fastflow.files.write.partial import State
from fastflow.files.write.writers import writer_for
from fastflow.progress import Progress
from fastflow.runtime import Runtime
from fastflow.stages.vectors import check_truncation

ROWS = 4096


def transform_file(runtime: Runtime, source: str, target: Path, settings: Settings, run: Run | None = None) -> Summary:
    """Calibrate the vectors of ``source`` (.npy) into ``target``, which appears only when whole.

    Raises a FastflowError for another width, and for NaN or infinity, naming the row.
    """
    run = run or Run()
    if writer_for(target) is not NpyFile:
        parts = "lines" if target.suffix == ".jsonl" else "rows"
        raise UsageError(
            f"{target}: the {parts} of a {target.suffix} file hold texts, and these are vectors; write .npy"
        )
    check_target(target, [source], settings, run)
    check_truncation(settings.dim, runtime.session.width, "--dim")
    with MatrixFile(source) as vectors:
        takes = runtime.info()
        if (dim := vectors.matrix.shape[1]) != takes["pooled_dim"]:
            raise FastflowError(
                f"{source} holds vectors of {dim} numbers, and the model {takes['model']} takes {takes['pooled_dim']}: "
                "give the vectors that the model was fitted to, or another -m"
            )
        key = numbers_of(runtime, settings.precision, settings.normalize)
        options = {name: settings.to_record()[name] for name in ("precision", "dim", "normalize", "ranges")}
        state = State(target, vectors.identity, key | {"options": options})
        if run.resume and (before := state.is_done()) is not None:
            return Summary(resumed=before, finished=True)
        with NpyFile(target, key) as writer, growing(writer, state, run.resume) as rows:
            if run.started is not None:
                run.started()
            progress = Progress("transform", len(vectors.matrix), "vectors", shown=not run.quiet, done=rows)
            earlier = Block(range(rows), [], np.zeros((0, 0)))
            write_rows(_transform(runtime, vectors, settings, rows), writer, state, progress, [earlier])
            return Summary(texts=writer.rows - rows, resumed=rows, unused=writer.unused)


def _transform(runtime: Runtime, source: MatrixFile, s: Settings, first: int) -> Iterator[Block]:
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
