"""An open model, and the only path from texts to embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends import Backend, Calibrator, FusedCall
from fastflow.backends.choose import open_backend, open_calibrator
from fastflow.errors import FastflowError, warn
from fastflow.late import Loading, late
from fastflow.model import Model, VectorModel, no_encoder
from fastflow.model.artifact import Opening
from fastflow.model.locate import find_packaged_name
from fastflow.model.tokenizer import Tokenizer, Tokens
from fastflow.model.tokenizer.fragmentation import ENCODER, SHIPPED, Seen, warn_of_unsuited
from fastflow.options import PLAIN, Options, check_texts, cut_windows, iterate_in_order, prefetch
from fastflow.transforms.calibration import Stage, apply, apply_wide, density_of, output_dim
from fastflow.transforms.vectors import check_count, check_finite, check_pooled, check_truncation, quantise, shorten
from fastflow.values import MOST

if TYPE_CHECKING:
    from pathlib import Path

Count = Callable[[int], None]
ENGLISH = ("default", "small", "static", "untuned")  # models in the package
MODEL = "a model that was made for {0}, such as -m {1}"


class Session:
    """A model on a device; ``truncated`` counts the texts cut so far. Arguments as in ``Runtime``."""

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
        self._fused: FusedCall | None = None
        with Opening(model, allow_download) as opening:
            if isinstance(opening.model, VectorModel):
                self._calibrator = open_calibrator(opening.model, backend, device, dtype, threads)
            else:
                loading = Loading(opening.model.tokenizer, "fastflow-tokenizer")
                try:
                    self._calibrator = found = open_backend(opening.model, backend, device, dtype, threads)
                finally:  # raise the tokenizer's error first
                    self._tokenizer = loading()
                    self._tokenizer.threads = threads
                self._fused = found.fuse(self._tokenizer)
        self.model, self.packaged = opening.model, find_packaged_name(opening.model.path)
        self._width = output_dim(self.model.calibration, self.calibrator.pooled_dim)
        self.seen, self.truncated = Seen(), 0
        self.unsuited: str | None = None  # a warning of the first texts
        self._own: tuple[Stage, ...] = ()

    def calibrate_in_python(self, stage: Stage) -> None:
        """Calibrate by ``stage``, which no kernel knows, in place of the model's own calibration."""
        probe = np.random.default_rng(0).normal(size=(32, self.calibrator.pooled_dim))
        identity = sha256(self.model.fingerprint.encode() + apply_wide([stage], probe).tobytes()).hexdigest()
        self.model = replace(self.model, calibration=(stage,), identity=identity, truncation=None, spread=None)
        self._own, self._fused, self._width = (stage,), None, stage.dims(0)

    def _calibrate(self, pooled: NDArray[Any], normalize: bool, truncate: int | None) -> NDArray[Any]:
        if not self._own:
            return np.asarray(self.calibrator.calibrate(pooled, normalize, truncate))
        return shorten(apply(self._own, pooled).astype(self.calibrator.floats), normalize, truncate)

    @property
    def closed(self) -> bool:
        return self._calibrator is None

    @property
    def calibrator(self) -> Calibrator:
        if self._calibrator is None:
            raise FastflowError("this Runtime is closed; make a new one")
        return self._calibrator

    @property
    def backend(self) -> Backend:
        if not isinstance(found := self.calibrator, Backend):
            raise no_encoder(self.model.path)
        return found

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise no_encoder(self.model.path)
        return self._tokenizer

    @property
    def max_length(self) -> int | None:
        """The most tokens of a text; None: no limit."""
        return None if (length := self.tokenizer.max_length) == MOST else length

    @property
    def width(self) -> int:
        """The width D' before truncation."""
        _ = self.calibrator  # raises after ``close``
        return self._width

    @late
    def _plain(self) -> Options:
        return PLAIN.resolve(self.width, self.model)

    def resolve(self, options: Options) -> Options:
        return self._plain if options.ranges is None and options == PLAIN else options.resolve(self.width, self.model)

    def blocks(
        self, texts: Iterable[str], options: Options = PLAIN, count: Count | None = None
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Check the options now, then yield (number of the first text, vectors (b, D')) of each window of ``texts``.

        ``count(n)`` is called after a batch of n texts. An error names its text.
        """
        o, overlaps = self.resolve(options), self.backend.overlaps
        windows = cut_windows(check_texts(iterate_in_order(texts)), o.window or 1, len)
        prepared: Iterator[list[str] | Tokens] = (self._prepare(window, o) for window in windows)
        if overlaps and (not isinstance(texts, Sized) or len(texts) > (o.window or 1)):
            prepared = prefetch(prepared)
        return self._compute(prepared, o, count)

    def encode(self, inputs: Any, options: Options = PLAIN, shown: bool = False) -> NDArray[Any]:
        texts = [inputs] if isinstance(inputs, str) else list(iterate_in_order(inputs))
        o = self.resolve(options)
        if not shown and 0 < len(texts) <= (o.window or 1):  # faster than ``blocks`` by 2 microseconds
            z = self._embed(self._prepare(list(check_texts(texts)), o), o, None)
            found = [self._quantise(check_finite(z, "text"), o)]
        elif shown:
            from fastflow.progress import Progress

            with Progress("embed", len(texts), "texts") as progress:
                found = [vectors for _, vectors in self.blocks(texts, options, progress.advance)]
        else:
            found = [vectors for _, vectors in self.blocks(texts, options)]
        if not found:
            return self.transform(np.zeros((0, self.backend.pooled_dim), self.calibrator.floats), options)
        if len(found) == 1:
            return found[0][0] if isinstance(inputs, str) else found[0]
        return np.concatenate(found)

    def transform(self, pooled: Any, options: Options = PLAIN) -> NDArray[Any]:
        o = self.resolve(options)
        x = check_pooled(pooled, self.calibrator.pooled_dim, self.calibrator.floats)
        z = self._calibrate(x, o.normalize_embeddings, o.truncate_dim)
        return self._quantise(check_finite(z, "transform: row"), o)

    def pool(
        self, texts: Iterable[str], batch_size: int | None = None, prompt: str | None = None,
        batch_tokens: int | None = None, count: Count | None = None,
    ) -> NDArray[Any]:  # fmt: skip
        check_count("batch_size", batch_size)
        check_count("batch_tokens", batch_tokens)
        checked = list(check_texts(iterate_in_order(texts)))
        self._look_at(checked)
        tokens = self.tokenize(checked, self.model.prompts.resolve(prompt))
        self._count_truncated(len(tokens.cut))
        return self.pool_tokens(tokens, batch_size, batch_tokens, count)

    def log_prob(self, inputs: Any, batch_size: int | None, prompt: str | None) -> NDArray[np.float64]:
        stages, calibrator = self.model.calibration, self.calibrator
        density = density_of(stages, self.model.path)  # raises without a density
        if isinstance(self.model, VectorModel) or getattr(inputs, "ndim", 1) == 2:
            pooled, what = check_pooled(inputs, calibrator.pooled_dim, calibrator.floats, "log_prob"), "log_prob: row"
        else:
            pooled, what = self.pool(inputs, batch_size, prompt), "text"
        wide = [stage.astype(np.float64) for stage in stages]
        return check_finite(density.log_prob(pooled.astype(np.float64), wide), what)

    def tokenize(self, texts: Sequence[str], prompt: str = "") -> Tokens:
        return self.tokenizer.tokenize_prompted(texts, prompt, self.model.prompts.pooled)

    def pool_tokens(
        self, tokens: Tokens, batch_size: int | None = None, batch_tokens: int | None = None, count: Count | None = None
    ) -> NDArray[Any]:
        batches = self._batches(tokens, batch_size, batch_tokens, count)
        return check_finite(self.backend.pool_batches(tokens, batches), "text")

    def embed_tokens(
        self, tokens: Tokens, normalize_embeddings: bool = False, truncate_dim: int | None = None
    ) -> NDArray[Any]:
        check_truncation(truncate_dim, self.width)
        width = truncate_dim or self.model.truncate_dim
        batches = self._batches(tokens, None, None)
        return check_finite(self._embed_batches(tokens, batches, normalize_embeddings, width), "text")

    def warn_of(self, texts: Sequence[str]) -> str | None:
        """Return a warning if ``texts`` do not suit the model's vocabulary, else None."""
        training = self.model.manifest.get("training")
        fitted = training.get("languages") if isinstance(training, dict) else None
        remedy = ENCODER if self.packaged == SHIPPED else MODEL
        warning = warn_of_unsuited(self.tokenizer, texts, remedy, fitted if isinstance(fitted, list) else ())
        english = warning and self.packaged in ENGLISH
        return f"{warning} (the model {self.packaged} is English only)" if english else warning

    def look_at(self, texts: Sequence[str]) -> str | None:
        """Keep the first texts; return the warning of ``warn_of``, at most once."""
        if self.unsuited or not self.seen.add(texts):
            return None
        self.unsuited = self.warn_of(self.seen.texts)
        return self.unsuited

    def close(self) -> None:
        self._calibrator = self._fused = None

    def _prepare(self, texts: list[str], o: Options) -> list[str] | Tokens:
        """Return texts with their prompt for the fused call, or tokens for separate steps."""
        if self.seen.open:
            self._look_at(texts)
        if self._fused is None or (o.prompt and not self.model.prompts.pooled):
            return self.tokenize(texts, o.prompt or "")
        if o.prompt:
            texts = [o.prompt + text for text in texts]
        longest = self.tokenizer.longest  # in characters; the fused call takes no longer text
        return texts if longest == MOST or max(map(len, texts)) <= longest else self.tokenizer(texts)

    def _compute(
        self, prepared: Iterator[list[str] | Tokens], o: Options, count: Count | None
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        start = 0
        for window in prepared:
            z = self._quantise(check_finite(self._embed(window, o, count), "text", start), o)
            yield start, z
            start += len(z)

    def _embed(self, window: list[str] | Tokens, o: Options, count: Count | None) -> NDArray[Any]:
        fused = self._fused  # kept: another thread may call ``close``
        _ = self.calibrator  # raises after ``close``
        if isinstance(window, list) and fused is not None:
            try:
                z, cut = fused(window, o.normalize_embeddings, o.truncate_dim)
            except ValueError:  # the separate steps name the faulty text
                window = self.tokenizer(window)
            else:
                self._count_truncated(cut)
                if count is not None:
                    count(len(window))
                return z
        tokens = self.tokenizer(window) if isinstance(window, list) else window
        self._count_truncated(len(tokens.cut))
        batches = self._batches(tokens, o.batch_size, o.batch_tokens, count)
        return self._embed_batches(tokens, batches, o.normalize_embeddings, o.truncate_dim)

    def _embed_batches(
        self, tokens: Tokens, batches: Iterator[NDArray[np.int64]], normalize: bool, truncate: int | None
    ) -> NDArray[Any]:
        if not self._own:
            return self.backend.embed(tokens, batches, normalize, truncate)
        return self._calibrate(self.backend.pool_batches(tokens, batches), normalize, truncate)

    def _quantise(self, z: NDArray[Any], o: Options) -> NDArray[Any]:
        if o.precision == "float32":
            return z
        spread = self.model.measure_spread(self.width, o.truncate_dim) if o.ranges is None else None
        return quantise(z, o.precision, o.normalize_embeddings, spread, o.ranges)

    def _batches(
        self, tokens: Tokens, batch_size: int | None, batch_tokens: int | None, count: Count | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield text numbers of each batch; call ``count(n)`` after n texts."""
        batches = tokens.batches(batch_size or len(tokens.offsets), batch_tokens or self.backend.batch_tokens)
        for rows in batches:
            yield rows
            if count is not None:
                count(len(rows))

    def _look_at(self, texts: Sequence[str]) -> None:
        if warning := self.look_at(texts):
            warn(warning)

    def _count_truncated(self, texts: int) -> None:
        if texts and not self.truncated:
            warn(f"texts longer than {self.tokenizer.max_length} tokens are cut (the model's max_length)")
        self.truncated += texts
