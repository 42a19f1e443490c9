"""An opened model: its tokenizer, its backend, and the steps between them that Runtime, commands and server share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.base import Backend, Calibrator
from fastflow.backends.choose import open_backend, open_calibrator
from fastflow.errors import FastflowError, warn
from fastflow.model.artifact import Opening, packaged_name
from fastflow.model.kinds import Model, VectorModel, no_encoder
from fastflow.model.tokenizer.encode import Loading, Tokenizer, Tokens
from fastflow.model.tokenizer.fragmentation import Seen
from fastflow.progress import Progress
from fastflow.stages.calibration import output_dim
from fastflow.stages.vectors import check_count, check_finite, check_pooled, check_truncation, quantise
from fastflow.streaming import StreamOptions, check_text, in_order
from fastflow.values import MOST

if TYPE_CHECKING:
    from pathlib import Path

    from fastflow.kernels.embed.cpu import Texts
    from fastflow.model.manifest import Likelihood

Embed = Callable[..., tuple[NDArray[Any], ...]]
Count = Callable[[int], None]
PLAIN = StreamOptions()
ENGLISH = "the model in the package is English only"


class Opened:
    """``model`` (None: the one in the package) on a device; the arguments are those of ``Runtime``, which checks them.

    ``truncated`` counts the texts that were cut at max_length so far.
    """

    def __init__(
        self,
        model: Path | Model | VectorModel | None,
        device: str,
        dtype: str,
        threads: int | None,
        backend: str,
        allow_download: bool,
    ) -> None:
        self._tokenizer: Tokenizer | None = None
        self._calibrator: Calibrator | None
        with Opening(model, allow_download) as opening:
            if isinstance(opening.model, VectorModel):
                self._calibrator = open_calibrator(opening.model, backend, device, dtype, threads)
            else:
                loading = Loading(opening.model.tokenizer)
                try:
                    self._calibrator = open_backend(opening.model, backend, device, dtype, threads)
                finally:  # a tokenizer's error goes before one of the backend
                    self._tokenizer = loading()
                    self._tokenizer.threads = threads
        self.model, self.packaged = opening.model, packaged_name(opening.model.path)
        self.seen, self.truncated = Seen(), 0
        self._whole: Texts | None = None
        if isinstance(self._calibrator, Backend) and self._tokenizer is not None:
            self._whole = self._calibrator.in_one_call(self._tokenizer)
        self._plain = self.model.truncate_dim is None and not self.model.prompts.resolve()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._calibrator is None

    @property
    def calibrator(self) -> Calibrator:
        """The calibration on its device; raises a FastflowError if it is closed."""
        if self._calibrator is None:
            raise FastflowError("this Runtime is closed; make a new one")
        return self._calibrator

    @property
    def backend(self) -> Backend:
        """The encoder with it; raises a UsageError for a model without an encoder."""
        if not isinstance(opened := self.calibrator, Backend):
            raise no_encoder(self.model.path)
        return opened

    @property
    def tokenizer(self) -> Tokenizer:
        """Texts -> Tokens; raises a UsageError for a model without an encoder."""
        if self._tokenizer is None:
            raise no_encoder(self.model.path)
        return self._tokenizer

    @property
    def max_length(self) -> int | None:
        """The tokens after which a text is cut, None for a table, which has no limit of its own."""
        return None if (length := self.tokenizer.max_length) == MOST else length

    @property
    def width(self) -> int:
        """All that the model computes: the most that ``truncate_dim`` may ask for."""
        return output_dim(self.model.calibration, self.calibrator.pooled_dim)

    @property
    def likelihood(self) -> Likelihood | None:
        """(log_prob, share): this share of the training corpus has a lower log-density; None if not recorded."""
        return self.model.likelihood if isinstance(self.model, Model) else None

    def prompted(self, texts: Sequence[str], prompt: str = "") -> Tokens:
        """The tokens of B texts, ``prompt`` before each."""
        return self.tokenizer.prompted(texts, prompt, self.model.prompts.pooled)

    def pool_tokens(
        self, tokens: Tokens, batch_size: int | None = None, batch_tokens: int | None = None, count: Count | None = None
    ) -> NDArray[Any]:
        """(B, D) pooled vectors of texts that are tokens already; ``count`` as in ``stream``."""
        batches = self._batches(tokens, batch_size, batch_tokens, count)
        return check_finite(self.backend.pool_batches(tokens, batches), "text")

    def embed_tokens(
        self, tokens: Tokens, normalize_embeddings: bool = False, truncate_dim: int | None = None
    ) -> NDArray[Any]:
        """(B, D') embeddings of texts that are tokens already, with the bits that ``Runtime.encode`` gives."""
        check_truncation(truncate_dim, self.width)
        truncate_dim = truncate_dim or self.model.truncate_dim
        batches = self._batches(tokens, None, None)
        return check_finite(self.backend.embed(tokens, batches, normalize_embeddings, truncate_dim), "text")

    def pool(
        self, texts: Iterable[str], batch_size: int | None, prompt: str | None, batch_tokens: int | None,
        count: Count | None = None,
    ) -> NDArray[Any]:  # fmt: skip
        """The body of ``Runtime.pool``, with numbers that are checked; ``count`` as in ``stream``."""
        check_count("batch_size", batch_size)
        check_count("batch_tokens", batch_tokens)
        checked = [check_text(t, i) for i, t in enumerate(in_order(texts))]
        self._look_at(checked)
        tokens = self.prompted(checked, self.model.prompts.resolve(prompt))
        self._count_truncated(len(tokens.cut))
        return self.pool_tokens(tokens, batch_size, batch_tokens, count)

    def embed(self, *batch: Any) -> tuple[NDArray[Any]]:
        """The embeddings of a window, for ``stream``."""
        return (self.backend.embed(*batch),)

    def stream(
        self, iterable: Iterable[str], o: StreamOptions, embed: Embed, count: Count | None = None
    ) -> Iterator[tuple[int, tuple[NDArray[Any], ...]]]:
        """(index of the first text, what ``embed`` makes of a window) in sequence; options are checked now.

        ``count`` takes the number of texts of every batch that is done.
        """
        o = o.settled(self.width, self.model)
        scored = embed == self.backend.embed_with_log_prob
        if self._whole and (scored or embed == self.embed) and o.truncate_dim is None and (o.pooled or not o.prompt):
            return self._wholes(o.texts(in_order(iterable), self._look_at), o, scored, count)
        windows = o.windows(in_order(iterable), self.tokenizer, self._look_at)
        several = not isinstance(iterable, Sized) or len(iterable) > o.size
        if several and self.backend.overlaps:
            from fastflow.streaming import ahead  # of a GPU

            windows = ahead(windows)
        return self._blocks(windows, o, embed, count)

    def encode(self, inputs: Any, o: StreamOptions, shown: bool) -> NDArray[Any]:
        """The body of ``Runtime.encode``: (D',) for a str, else (B, D'); ``shown``: with progress."""
        single = isinstance(inputs, str)
        texts = [inputs] if single else list(in_order(inputs))
        out = None if shown else self.at_once(texts, o)
        if out is None:
            with Progress("embed", len(texts), "texts", shown) as progress:
                blocks = [z for _, (z, *_) in self.stream(texts, o, self.embed, progress.advance)]
            out = np.concatenate(blocks) if blocks else self.nothing(o)
        return out[0] if single else out

    def at_once(self, texts: list[str], o: StreamOptions) -> NDArray[Any] | None:
        """The embeddings of ``texts`` if one compiled call makes them: with no option, of at most a window of texts."""
        if self._whole is None or not self._plain or o.ranges is not None or o != PLAIN or not 0 < len(texts) <= o.size:
            return None
        checked = [check_text(text, i) for i, text in enumerate(texts)]
        if self.seen.open:
            self._look_at(checked)
        return check_finite(self._embed_texts(checked, False), "text")

    def _wholes(
        self, windows: Iterator[list[str]], o: StreamOptions, scored: bool, count: Count | None
    ) -> Iterator[tuple[int, tuple[NDArray[Any], ...]]]:
        """As ``_blocks``, of windows of texts, each in one compiled call; ``scored``: with log-densities."""
        start, spread, prompt = 0, self.model.spread_of(self.width, None), o.prompt
        for texts in windows:
            given = [prompt + text for text in texts] if prompt else texts
            pooled = np.empty((len(texts), self.backend.pooled_dim), np.float32) if scored else None
            z = check_finite(self._embed_texts(given, o.normalize_embeddings, pooled), "text", start)
            scores = [] if pooled is None else [check_finite(self.calibrator.log_prob(pooled), "text", start)]
            if count is not None:
                count(len(texts))
            yield start, (quantise(z, o.precision, o.normalize_embeddings, spread, o.ranges), *scores)
            start += len(texts)

    def _embed_texts(self, texts: list[str], normalize: bool, pooled: NDArray[Any] | None = None) -> NDArray[Any]:
        """(B, D') embeddings in one compiled call; step by step if a text is cut by characters before that. ``pooled``
        (B, D) receives the pooled vectors.
        """
        self.calibrator  # noqa: B018 - raises if it is closed
        whole, longest = self._whole, self.tokenizer.longest  # another thread may close meanwhile
        if whole is None or (longest < MOST and max(map(len, texts)) > longest):
            return self._in_steps(texts, normalize, pooled)
        try:
            z, cut = whole(texts, normalize, pooled)
        except ValueError as error:
            self._in_steps(texts, normalize)  # raises with the name of the text
            raise FastflowError(str(error)) from error
        self._count_truncated(cut)
        return z

    def _in_steps(self, texts: list[str], normalize: bool, pooled: NDArray[Any] | None = None) -> NDArray[Any]:
        tokens = self.tokenizer(texts)
        self._count_truncated(len(tokens.cut))
        x = self.backend.pool_batches(tokens, self._batches(tokens, None, None))
        if pooled is not None:
            pooled[:] = x
        return self.calibrator.calibrate(x, normalize)

    def _blocks(
        self, windows: Iterator[Tokens], o: StreamOptions, embed: Embed, count: Count | None
    ) -> Iterator[tuple[int, tuple[NDArray[Any], ...]]]:
        """The blocks of ``stream``, whose options are checked."""
        start, spread = 0, self.model.spread_of(self.width, o.truncate_dim)
        for tokens in windows:
            self._count_truncated(len(tokens.cut))
            batches = self._batches(tokens, o.batch_size, o.batch_tokens, count)
            found = embed(tokens, batches, o.normalize_embeddings, o.truncate_dim)
            z, *rest = (check_finite(each, "text", start) for each in found)
            yield start, (quantise(z, o.precision, o.normalize_embeddings, spread, o.ranges), *rest)
            start += len(z)

    def log_prob(self, inputs: Any, batch_size: int | None, prompt: str | None) -> NDArray[np.float64]:
        """The body of ``Runtime.log_prob``."""
        calibrator = self.calibrator
        _ = calibrator.density  # raises if there is none, before anything is computed
        if isinstance(self.model, VectorModel) or getattr(inputs, "ndim", 1) == 2:
            pooled = check_pooled(inputs, calibrator.pooled_dim, calibrator.floats, "log_prob")
            return check_finite(calibrator.log_prob(pooled), "log_prob: row")
        return check_finite(calibrator.log_prob(self.pool(inputs, batch_size, prompt, None)), "text")

    def transform(self, array: Any, o: StreamOptions) -> NDArray[Any]:
        """The body of ``Runtime.transform``, which makes ``o`` of its options."""
        o = o.settled(self.width, self.model)
        pooled = check_pooled(array, self.calibrator.pooled_dim, self.calibrator.floats)
        z = np.asarray(self.calibrator.calibrate(pooled, o.normalize_embeddings, o.truncate_dim))
        spread = self.model.spread_of(self.width, o.truncate_dim)
        return quantise(check_finite(z, "transform: row"), o.precision, o.normalize_embeddings, spread, o.ranges)

    def nothing(self, o: StreamOptions) -> NDArray[Any]:
        """(0, D') as if of texts."""
        return self.transform(np.zeros((0, self.backend.pooled_dim), self.calibrator.floats), o)

    def unsuited(self, texts: Sequence[str]) -> str | None:
        """One sentence if the words of ``texts`` do not suit the encoder's vocabulary, None if they do."""
        from fastflow.model.tokenizer.fragmentation import unsuited

        warning = unsuited(self.tokenizer, texts)
        return f"{warning} ({ENGLISH})" if warning and self.packaged else warning

    def close(self) -> None:
        """Free the weights."""
        self._calibrator = self._whole = None

    def _batches(
        self, tokens: Tokens, batch_size: int | None, batch_tokens: int | None, count: Count | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Row numbers of each batch, cut by texts and by tokens; ``count`` as in ``stream``."""
        batches = tokens.batches(batch_size or len(tokens.offsets), batch_tokens or self.backend.batch_tokens)
        return batches if count is None else counted(batches, count)

    def _look_at(self, texts: Sequence[str]) -> None:
        """Keep the first texts, and warn once if enough show that the vocabulary does not suit."""
        if self.seen.add(texts) and (warning := self.unsuited(self.seen.texts)):
            warn(warning)

    def _count_truncated(self, texts: int) -> None:
        if texts and not self.truncated:
            warn(f"texts longer than {self.tokenizer.max_length} tokens are cut (the model's max_length)")
        self.truncated += texts


def counted(batches: Iterator[NDArray[np.int64]], count: Count) -> Iterator[NDArray[np.int64]]:
    """``batches``; ``count`` takes the number of texts of each when the next is asked for, which it is at the end."""
    for rows in batches:
        yield rows
        count(len(rows))
