"""``fastflow transform``: a .npy file of vectors in, a file of embeddings out, in constant memory and resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.embed import numbers_of
from fastflow.files.encoding import stored
from fastflow.files.read.matrix import MatrixFile
from fastflow.files.read.ranges import Ranges, digest_of, values_of
from fastflow.files.run import write
from fastflow.files.write.database import DatabaseFile
from fastflow.files.write.growing import growing
from fastflow.files.write.outputs import JsonLinesFile
from fastflow.files.write.parquet_output import ParquetOutput
from fastflow.files.write.partial import State, check_known, check_output
from fastflow.files.write.printing import Block
from fastflow.files.write.writers import writer_for
from fastflow.progress import Progress
from fastflow.runtime import Runtime
from fastflow.stages.vectors import check_truncation

ROWS = 4096  # vectors calibrated at a time


@dataclass(frozen=True)
class TransformOptions:
    """The options of ``fastflow transform`` that shape rows: all must agree for a run to be resumed."""

    precision: str = "float32"
    dim: int | None = None
    normalize: bool = False
    ranges: Ranges | None = None


@dataclass
class Summary:
    """The counts of a run."""

    vectors: int = 0
    resumed: int = 0
    finished: bool = False  # by an earlier run: this one had nothing to do


def transform_file(
    runtime: Runtime, source: str, target: Path, settings: TransformOptions, resume: bool = False, quiet: bool = False,
    started: Callable[[], None] = lambda: None,
) -> Summary:  # fmt: skip
    """Calibrate the vectors of ``source``, a .npy file, into ``target``, which appears only when whole (``growing``).

    ``started`` is called when nothing of the arguments is wrong. Raises a FastflowError for vectors of another width
    than the model's, and for NaN or infinity, naming the row.
    """
    kind = writer_for(target)
    if kind in (JsonLinesFile, ParquetOutput, DatabaseFile):
        parts = "lines" if kind is JsonLinesFile else "rows"
        raise UsageError(
            f"{target}: the {parts} of a {target.suffix} file hold texts, and these are vectors; write .npy"
        )
    for path in [source] if settings.ranges is None else [source, settings.ranges.path]:
        check_output(target, path)
    check_truncation(settings.dim, runtime.session.width, "--dim")
    if settings.ranges is not None:
        settings.ranges.check_width(settings.dim or runtime.dim)
    if resume:
        check_known(target)
    with MatrixFile(source) as vectors:
        takes = runtime.info()
        if (dim := vectors.matrix.shape[1]) != takes["pooled_dim"]:
            raise FastflowError(
                f"{source} holds vectors of {dim} numbers, and the model {takes['model']} takes {takes['pooled_dim']}: "
                "give the vectors that the model was fitted to, or another -m"
            )
        key = numbers_of(runtime, settings.precision, settings.normalize, settings.ranges)
        options = vars(settings) | {"ranges": digest_of(settings.ranges)}
        state = State(target, vectors.identity, key | {"options": options})
        if resume and (before := state.is_done()) is not None:
            return Summary(resumed=before, finished=True)
        with kind(target, key) as writer, growing(writer, state, resume) as rows:
            started()
            transformed = Transformed(runtime, vectors, settings, rows)
            progress = Progress("transform", len(vectors.matrix), "vectors", shown=not quiet, done=rows)
            write(transformed, writer, state, rows, progress)
            return Summary(transformed.rows - rows, rows)


class Transformed:
    """The rows of ``source`` after the first ``rows``, calibrated."""

    def __init__(self, runtime: Runtime, source: MatrixFile, settings: TransformOptions, rows: int) -> None:
        self._runtime, self._source, self._settings, self.rows = runtime, source, settings, rows

    def before(self, rows: int) -> Iterator[Block]:
        """See ``BlockSource``."""
        yield Block(range(rows), [], None, np.zeros((0, 0)))

    def empty(self) -> Block:
        """See ``BlockSource``."""
        return Block([], [], None, self._calibrated(np.zeros((0, self._source.matrix.shape[1]), np.float32)))

    def blocks(self) -> Iterator[Block]:
        """See ``BlockSource``; raises if the file has changed."""
        for vectors in self._source.blocks(ROWS, self.rows):
            rows = range(self.rows, self.rows + len(vectors))
            try:
                made = self._calibrated(vectors)
            except FastflowError as error:
                raise FastflowError(f"{self._source.path}, rows {rows[0]} to {rows[-1]}: {error}") from error
            yield Block(rows, [], None, made)
            self.rows = rows.stop

    def _calibrated(self, vectors: NDArray[Any]) -> NDArray[Any]:
        s = self._settings
        options: dict[str, Any] = {"normalize_embeddings": s.normalize, "precision": s.precision}
        return stored(self._runtime.transform(vectors, truncate_dim=s.dim, ranges=values_of(s.ranges), **options))
