"""Cut rows into windows, warn about unsuited texts, and compute the vectors."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.console import say
from fastflow.files import EmbedConfig
from fastflow.files.read import RowFault
from fastflow.files.read.sources import Row, Sources, one_text
from fastflow.files.read.texts import unit_of
from fastflow.options import Options, cut_windows

if TYPE_CHECKING:
    from fastflow.files.vector_cache import VectorCache
    from fastflow.runtime import Runtime
    from fastflow.session import Count

FEWEST, SECONDS = 16, 1.0  # fewest rows, and time, of a window that varies


class Window(NamedTuple):
    """Rows that are embedded together."""

    rows: list[Row]
    texts: list[str]


class Pace:
    """The rows of the next window: ``most``, or if it ``varies``, as many as take about SECONDS.

    Small windows show progress early, and lose little at an interruption.
    """

    def __init__(self, most: int, varies: bool = False) -> None:
        self.steady, self._most = not varies, most
        self.size = min(FEWEST, most) if varies else most
        self._since = time.monotonic()

    def done(self, rows: int) -> None:
        seconds, self._since = time.monotonic() - self._since, time.monotonic()
        if not self.steady and rows >= self.size and seconds < SECONDS / 2:
            self.size = min(self._most, 2 * self.size)
        elif not self.steady and seconds > 2 * SECONDS:
            self.size = max(min(FEWEST, self._most), self.size // 2)


def windows(rows: Iterator[Row], runtime: Runtime, source: Sources, s: EmbedConfig, pace: Pace) -> Iterator[Window]:
    """Yield windows of ``pace.size`` rows, fewer if texts are long or a pipe waits.

    Raises a RowFault for a text that is too long.
    """
    for window in _cut_windows(rows, source, pace):
        texts = [one_text(row) for row in window]
        if s.truncate == "error" and len(cut := runtime.tokenizer([(s.prompt or "") + t for t in texts]).cut):
            _, path, record = window[cut[0]]
            raise RowFault(
                f"{path}, {unit_of(path, s.layout)} {record.line}",
                f"longer than the model's {runtime.info()['max_length']} tokens",
                option="--truncate right",
            )
        yield Window(window, texts)


def warn_if_unsuited(windows: Iterator[Window], runtime: Runtime) -> Iterator[Window]:
    """Yield ``windows``; warn if the first does not suit the vocabulary."""
    for number, window in enumerate(windows):
        if number == 0 and (warning := runtime.session.warn_of(window.texts)):
            say(f"fastflow: WARNING: {warning}")
        yield window


def characters(row: Row) -> int:
    """Count the characters of a row's texts and kept strings."""
    return sum(len(value) for value in (*row.record.texts, *row.record.kept) if isinstance(value, str))


def _cut_windows(rows: Iterator[Row], source: Sources, pace: Pace) -> Iterator[list[Row]]:
    def there() -> Iterator[Row]:
        for row in rows:
            yield row
            if source.current.waits():
                return

    while window := next(cut_windows(there(), pace.size, characters), None):
        yield window


class WindowEncoder:
    """Embed texts with the options of a run; vectors in ``store`` are not computed again.

    ``window``: texts that are computed together.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: EmbedConfig,
        window: int,
        store: VectorCache | None = None,
        count: Count | None = None,
    ) -> None:
        self._runtime, self._settings, self._window = runtime, settings, window
        self._store, self._count = store, count
        self._how: dict[str, Any] = {
            "normalize_embeddings": settings.normalize, "precision": settings.precision, "truncate_dim": settings.dim
        }  # fmt: skip
        self._before, self._cut = runtime.truncated, 0
        self.reused = 0

    @property
    def cut(self) -> int:
        """The number of truncated texts, reused ones included."""
        return self._runtime.truncated - self._before if self._store is None else self._cut

    def over(self, windows: Iterator[Window], source: Sources, steady: bool) -> Iterator[tuple[Window, NDArray[Any]]]:
        """Yield each window with its vectors.

        Without a store, windows of ``steady`` size are one stream: tokenising overlaps with computing.
        """
        if self._store is not None or source.identity is None or not steady:
            yield from ((window, self(window.texts)) for window in windows)
            return
        coming: deque[Window] = deque()

        def texts() -> Iterator[str]:
            for window in windows:
                coming.append(window)
                yield from window.texts

        held: NDArray[Any] | None = None
        for made in self._stream(texts()):
            held = made if held is None else np.concatenate([held, made])
            while held is not None and (count := len(coming[0].texts)) <= len(held):
                first, held = held[:count], held[count:] if len(held) > count else None
                yield coming.popleft(), first

    def __call__(self, texts: Sequence[str]) -> NDArray[Any]:
        if self._store is not None:
            return drop_float64(self._runtime.transform(self._pool(texts, self._store), **self._how))
        return np.concatenate([drop_float64(self._runtime.encode([], **self._how)), *self._stream(texts)])

    def _stream(self, texts: Iterable[str]) -> Iterator[NDArray[Any]]:
        s = self._settings
        options = Options(**self._how, prompt=s.prompt, batch_tokens=s.batch_tokens, window=self._window)
        return (drop_float64(vectors) for _, vectors in self._runtime.session.blocks(texts, options, self._count))

    def _pool(self, texts: Sequence[str], store: VectorCache) -> NDArray[Any]:
        from fastflow.files.vector_cache import keys_of, pack_rows, unpack_rows

        runtime, s = self._runtime, self._settings
        keys = keys_of(texts, store.decided)
        distinct = dict(zip(keys, texts, strict=True))
        found = store.find(list(distinct))
        new = {key: text for key, text in distinct.items() if key not in found}
        before, listed = runtime.truncated, list(new.values())
        pooled = runtime.session.pool(listed, None, s.prompt, s.batch_tokens, self._count)
        cut: Iterable[int] = ()
        if runtime.truncated > before:
            cut = runtime.tokenizer([store.decided["prompt"] + text for text in listed]).cut
        fresh = dict(zip(new, pack_rows(pooled, cut), strict=True))
        store.add(fresh)
        self.reused += len(texts) - len(new)
        rows = found | fresh
        vectors, count = unpack_rows([rows[key] for key in keys], pooled.shape[1], pooled.dtype)
        self._cut += count
        return vectors


@contextmanager
def open_store(
    runtime: Runtime, settings: EmbedConfig, cache: Path | None, target: Path | None
) -> Iterator[VectorCache | None]:
    """Open the store of reused vectors: ``cache``, a file next to ``target`` for --dedupe, or None."""
    if cache is None and not settings.dedupe:
        yield None
        return
    from fastflow.files.vector_cache import VectorCache, decides

    none = runtime.pool([])
    folder = Path(tempfile.gettempdir()) if target is None else target.parent
    store = VectorCache(
        cache or folder / "(temporary file of --dedupe)",
        decides(runtime, settings.prompt),
        1 + none.shape[1] * none.itemsize,
        settings.layout.id_field is not None,
        cache is None,
    )
    try:
        yield store
        store.finish()
    finally:
        store.close()


def drop_float64(vectors: NDArray[Any]) -> NDArray[Any]:
    """Cast float64, which is for computing only, to float32."""
    return vectors.astype(np.float32) if vectors.dtype == np.float64 else vectors
