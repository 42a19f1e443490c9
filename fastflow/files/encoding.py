"""Vectors of windows of texts, with the options of a run: precision, dimensions, repeated texts, log-densities."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.files.settings import Settings
from fastflow.files.sources import Sources
from fastflow.files.windows import Window
from fastflow.runtime import Runtime

REMEMBERED = 100_000  # distinct texts whose vectors --dedupe keeps at hand


class Made(NamedTuple):
    """Vectors (b, D') of texts, and log-densities (b,) where they are needed."""

    vectors: NDArray[Any]
    log_probs: NDArray[np.float64] | None


class Encoder:
    """texts -> vectors with the run's options; with dedupe, a text seen among the last REMEMBERED costs nothing.

    ``scored``: with log-densities. ``window``: the texts that are computed together.
    """

    def __init__(self, runtime: Runtime, settings: Settings, scored: bool, window: int) -> None:
        self._runtime, self._settings, self.scored, self._window = runtime, settings, scored, window
        self._seen: dict[str, tuple[Any, ...]] = {}

    def over(self, windows: Iterator[Window], source: Sources) -> Iterator[tuple[Window, Made]]:
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
        """Vectors and log-densities of ``texts``, (0, D') and (0,) of none."""
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
        """What is made of every window of texts."""
        s = self._settings
        options: dict[str, Any] = {
            "normalize_embeddings": s.normalize, "precision": s.precision, "truncate_dim": s.dim, "prompt": s.prompt,
            "batch_tokens": s.batch_tokens, "window": self._window,
        }  # fmt: skip
        if not self.scored:
            return (Made(stored(z), None) for _, z in self._runtime.stream(texts, **options))
        return (Made(stored(z), scores) for _, z, scores in self._runtime.stream_with_log_prob(texts, **options))


def stored(vectors: NDArray[Any]) -> NDArray[Any]:
    """As --precision says: float64 is for computing only."""
    return vectors.astype(np.float32) if vectors.dtype == np.float64 else vectors
