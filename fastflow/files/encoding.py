"""Vectors of windows of texts with the options of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.files.read.sources import Sources
from fastflow.files.run import Settings
from fastflow.files.windows import Window
from fastflow.options import Options
from fastflow.runtime import Runtime
from fastflow.session import Count

if TYPE_CHECKING:
    from fastflow.files.reuse.store import Store


class VectorBlock(NamedTuple):
    """Vectors (b, D'), and log-densities (b,) or None."""

    vectors: NDArray[Any]
    log_probs: NDArray[np.float64] | None

    def join_rows(self, more: VectorBlock) -> VectorBlock:
        scores = None
        if self.log_probs is not None and more.log_probs is not None:
            scores = np.concatenate([self.log_probs, more.log_probs])
        return VectorBlock(np.concatenate([self.vectors, more.vectors]), scores)

    def split(self, count: int) -> tuple[VectorBlock, VectorBlock | None]:
        if count == len(self.vectors):
            return self, None
        scores = (None, None) if self.log_probs is None else (self.log_probs[:count], self.log_probs[count:])
        return VectorBlock(self.vectors[:count], scores[0]), VectorBlock(self.vectors[count:], scores[1])


class Encoder:
    """Embed texts with the options of a run; pooled vectors in ``store`` are not computed again.

    ``scored``: with log-densities. ``window``: texts that are computed together.
    """

    def __init__(
        self, runtime: Runtime, settings: Settings, scored: bool, window: int, store: Store | None = None,
        count: Count | None = None,
    ) -> None:  # fmt: skip
        self._runtime, self._settings, self.scored, self._window = runtime, settings, scored, window
        self._store, self._count = store, count
        self._before, self._cut = runtime.truncated, 0
        self.reused = 0

    @property
    def cut(self) -> int:
        """The number of cut texts, reused ones included."""
        return self._runtime.truncated - self._before if self._store is None else self._cut

    def over(self, windows: Iterator[Window], source: Sources, steady: bool) -> Iterator[tuple[Window, VectorBlock]]:
        """Yield each window with its vectors.

        Without a store, ``steady`` windows are one stream: tokenising overlaps with computing.
        """
        if self._store is not None or source.identity is None or not steady:
            yield from ((window, self(window.texts)) for window in windows)
            return
        coming: deque[Window] = deque()

        def texts() -> Iterator[str]:
            for window in windows:
                coming.append(window)
                yield from window.texts

        held: VectorBlock | None = None
        for made in self._stream(texts()):
            held = made if held is None else held.join_rows(made)
            while held is not None and len(coming[0].texts) <= len(held.vectors):
                first, held = held.split(len(coming[0].texts))
                yield coming.popleft(), first

    def __call__(self, texts: Sequence[str]) -> VectorBlock:
        """Return vectors (b, D') and log-densities (b,) of ``texts``."""
        if self._store is not None:
            return self._finish(self._pool(texts, self._store))
        s = self._settings
        none = drop_float64(self._runtime.encode([], None, s.normalize, True, False, s.precision, s.dim))
        parts = [VectorBlock(none, np.zeros(0)), *self._stream(texts)]
        scores = np.concatenate([part.log_probs for part in parts if part.log_probs is not None])
        return VectorBlock(np.concatenate([part.vectors for part in parts]), scores if self.scored else None)

    def _stream(self, texts: Iterable[str]) -> Iterator[VectorBlock]:
        s = self._settings
        options: dict[str, Any] = {
            "normalize_embeddings": s.normalize, "precision": s.precision, "truncate_dim": s.dim, "prompt": s.prompt,
            "batch_tokens": s.batch_tokens, "window": self._window,
        }  # fmt: skip
        blocks = self._runtime.session.blocks(texts, Options(**options), self._count, self.scored)
        return (VectorBlock(drop_float64(block.vectors), block.log_probs) for block in blocks)

    def _pool(self, texts: Sequence[str], store: Store) -> NDArray[Any]:
        from fastflow.files.reuse.store import decides, keys_of, pack_rows, unpack_rows

        runtime, s = self._runtime, self._settings
        decided = decides(runtime, s.prompt)
        keys = keys_of(texts, decided)
        distinct = dict(zip(keys, texts, strict=True))
        found = store.find(list(distinct))
        new = {key: text for key, text in distinct.items() if key not in found}
        before, listed = runtime.truncated, list(new.values())
        pooled = runtime.session.pool(listed, None, s.prompt, s.batch_tokens, self._count)
        cut: Iterable[int] = ()
        if runtime.truncated > before:
            cut = runtime.tokenizer([decided["prompt"] + text for text in listed]).cut
        fresh = dict(zip(new, pack_rows(pooled, cut), strict=True))
        store.add(fresh)
        self.reused += len(texts) - len(new)
        rows = found | fresh
        vectors, count = unpack_rows([rows[key] for key in keys], pooled.shape[1], pooled.dtype)
        self._cut += count
        return vectors

    def _finish(self, pooled: NDArray[Any]) -> VectorBlock:
        s, runtime = self._settings, self._runtime
        options: dict[str, Any] = {"normalize_embeddings": s.normalize, "precision": s.precision, "truncate_dim": s.dim}
        vectors = drop_float64(runtime.transform(pooled, **options))
        return VectorBlock(vectors, runtime.log_prob(pooled) if self.scored else None)


@contextmanager
def open_store(runtime: Runtime, settings: Settings, cache: Path | None, target: Path | None) -> Iterator[Store | None]:
    """Open the store of reused vectors, ``cache`` or for --dedupe files next to ``target``; None without both."""
    if cache is None and not settings.dedupe:
        yield None
        return
    from fastflow.files.reuse.repeats import Repeats
    from fastflow.files.reuse.store import decides
    from fastflow.files.reuse.vector_cache import VectorCache

    none = runtime.pool([])
    size = 1 + none.shape[1] * none.itemsize
    store: Store
    if cache is not None:
        store = VectorCache(cache, decides(runtime, settings.prompt), size)
    else:
        store = Repeats(None if target is None else target.parent, size)
    try:
        yield store
        store.finish()
    finally:
        store.close()


def drop_float64(vectors: NDArray[Any]) -> NDArray[Any]:
    """Cast float64, which is for computing only, to float32."""
    return vectors.astype(np.float32) if vectors.dtype == np.float64 else vectors
