"""Runtime: texts -> tokens -> encoder -> pooling -> calibration -> embeddings."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.base import Backend, Calibrator
from fastflow.backends.choose import open_backend, open_calibrator
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import DEFAULT, Opening, located
from fastflow.model.fragmentation import Seen
from fastflow.model.kinds import Model, VectorModel, no_encoder
from fastflow.model.tokens import Loading, Tokenizer, Tokens
from fastflow.progress import Progress
from fastflow.prompting import Prompting
from fastflow.stages.calibration import output_dim
from fastflow.stages.texts import check_text, in_order, one_of
from fastflow.stages.vectors import (
    check_count,
    check_finite,
    check_pooled,
    check_precision,
    check_ranges,
    check_truncation,
    quantise,
)
from fastflow.streaming import StreamOptions
from fastflow.values import MOST, short

if TYPE_CHECKING:
    from fastflow.model.likelihood import Likelihood


class Runtime(Prompting):
    """A model ready to embed texts; one without an encoder calibrates vectors alone.

    Safe to call from several threads; survives fork; pickles to its path. Use it as a context manager, or call
    ``close``, to free its memory early.

    Args:
        model: The path of a fastflow model, of a Sentence Transformers directory or of a Hugging Face encoder; or the
            Hub id of one; or a model that is open already. None is the model in the package.
        device: auto, cpu or cuda.
        dtype: The encoder's arithmetic: auto, float32, float64, bfloat16, float16 or int8, if the backend has it. For a
            model without an encoder that of the calibration: float32 or float64.
        threads: The threads of one call. None takes OMP_NUM_THREADS, else the cores that this process may use.
        backend: auto, cpu (compiled), triton, reference (NumPy) or torch.
        allow_download: Whether a Hub id, or an encoder that the model names on the Hub, may be downloaded. Otherwise it
            must be in the local Hub cache, and nothing uses the network.

    Raises:
        FastflowError: The model is absent, damaged or unsupported, or the choice cannot run on this machine.

    Example:
        >>> import fastflow
        >>> fastflow.Runtime().encode(["A cat sat.", "A dog ran."]).shape
        (2, 256)
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Model | VectorModel | None = None,
        device: str = "auto",
        dtype: str = "auto",
        threads: int | None = None,
        *,
        backend: str = "auto",
        allow_download: bool = False,
    ) -> None:
        if not (model is None or isinstance(model, Model | VectorModel)):
            if not isinstance(model, str | os.PathLike):
                raise UsageError(f"a model is the path of a directory, not {short(model)}")
            found = located(model if isinstance(model, str) else Path(model), allow_download)
            model = None if found == DEFAULT else Path(os.path.abspath(found))  # a pickle may move
        self._arguments = (model, device, dtype, threads, backend, allow_download)
        self._tokenizer: Tokenizer | None = None
        self._opened: Calibrator | None
        with Opening(model, allow_download) as opening:
            if isinstance(opening.model, VectorModel):
                self._opened = open_calibrator(opening.model, backend, device, dtype, threads)
            else:
                loading = Loading(opening.model.tokenizer)
                try:
                    self._opened = open_backend(opening.model, backend, device, dtype, threads)
                finally:  # a tokenizer's error goes before one of the backend
                    self._tokenizer = loading()
        self._model = opening.model
        self._seen = Seen()
        self.truncated = 0  # texts cut at max_length so far

    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        convert_to_numpy: bool = True,
        show_progress_bar: bool | None = None,
        precision: str = "float32",
        truncate_dim: int | None = None,
        prompt: str | None = None,
        *,
        prompt_name: str | None = None,
        sentences: str | Iterable[str] | None = None,
        ranges: Any = None,
    ) -> Any:
        """Embed one text or many.

        Args:
            inputs: A text, or an iterable of texts, which is read into a list first; ``stream`` reads it as it comes.
            batch_size: The most texts that are computed at once. None: the tokens decide.
            normalize_embeddings: Whether to divide each vector by its L2 norm, after it was shortened; for stores that
                compare by dot products. ``similarity`` needs no such vectors.
            convert_to_numpy: False returns a list of NumPy vectors (D',).
            show_progress_bar: True shows progress on standard error.
            precision: float32, float16, int8 or uint8, an array of that dtype; binary (int8) or ubinary (uint8), the
                signs of eight dimensions in a byte, (B, D'/8). ``similarity`` takes int8 as it is.
            truncate_dim: The numbers to keep of each vector, (B, truncate_dim). ``info()["truncation"]`` tells whether
                the model rotates them first, so that the leading ones hold the most.
            prompt: Text to put before every text. None: the model's prompt ``prompt_name``, or its default.
            prompt_name: The name of a prompt of the model.
            sentences: The older name of ``inputs``.
            ranges: (2, D'), the least and the largest value of each dimension, which int8 and uint8 divide into 256
                steps, as ``quantize_embeddings`` of Sentence Transformers does. None: one range about 0 for all
                dimensions, which keeps cosines; its scale is not returned.

        Returns:
            (D',) for one text; (B, D') for many, in their order; (0, D') for none.

        Raises:
            FastflowError: A text is no str, or its vector is not finite; the message names its index.
            UsageError: An option does not fit the model.

        Example:
            >>> fastflow.Runtime().encode("A cat sat.", truncate_dim=64).shape
            (64,)
        """
        texts = one_of(inputs, sentences)
        if isinstance(texts, str):
            given = (batch_size, normalize_embeddings, True, False, precision, truncate_dim, prompt)
            return self.encode([texts], *given, prompt_name=prompt_name, ranges=ranges)[0]
        texts = list(in_order(texts))
        options: dict[str, Any] = {
            "normalize_embeddings": normalize_embeddings,
            "precision": precision,
            "truncate_dim": truncate_dim,
            "ranges": ranges,
        }
        with Progress("embed", len(texts), "texts", shown=bool(show_progress_bar)) as progress:
            blocks = []
            options_of_stream = options | {"prompt": prompt, "prompt_name": prompt_name}
            for _, block in self.stream(texts, batch_size=batch_size, **options_of_stream):
                blocks.append(block)
                progress.advance(len(block))
        out = np.concatenate(blocks) if blocks else self._nothing(**options)
        return out if convert_to_numpy else list(out)

    def stream(
        self,
        iterable: Iterable[str],
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        precision: str = "float32",
        truncate_dim: int | None = None,
        prompt: str | None = None,
        batch_tokens: int | None = None,
        window: int | None = None,
        prompt_name: str | None = None,
        ranges: Any = None,
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Embed texts block after block, in their order and in constant memory.

        Args:
            iterable: The texts; an iterator is read as it comes.
            batch_size: As in ``encode``; it does not change the blocks.
            normalize_embeddings: As in ``encode``.
            precision: As in ``encode``.
            truncate_dim: As in ``encode``.
            prompt: As in ``encode``.
            batch_tokens: The most tokens that are computed at once, padding counted. None: the backend's choice.
            window: The texts of a block, which are held in memory and sorted by length together. None: 4,096.
            prompt_name: As in ``encode``.
            ranges: As in ``encode``.

        Yields:
            (index of the first text, embeddings (b, D')).

        Raises:
            FastflowError: As ``encode``.

        Example:
            >>> [(start, z.shape) for start, z in fastflow.Runtime().stream(["A cat."] * 3, window=2)]
            [(0, (2, 256)), (2, (1, 256))]
        """
        options = StreamOptions(
            batch_size, normalize_embeddings, precision, truncate_dim, prompt, batch_tokens, window, prompt_name, ranges
        )  # fmt: skip

        def embed(*batch: Any) -> tuple[NDArray[Any]]:
            return (self._backend.embed(*batch),)

        return ((start, z) for start, (z,) in self._stream(iterable, options, embed))

    def stream_with_log_prob(
        self, iterable: Iterable[str], **options: Any
    ) -> Iterator[tuple[int, NDArray[Any], NDArray[np.float64]]]:
        """Like ``stream``, with the log-density of each text; embeddings have the bits that ``stream`` gives.

        Args:
            iterable: The texts; an iterator is read as it comes.
            **options: Those of ``stream``.

        Yields:
            (index of the first text, embeddings (b, D'), natural-log densities (b,)).

        Raises:
            FastflowError: As ``stream`` and ``log_prob``.
        """
        _ = self._backend.density  # raises if there is none

        def embed(*batch: Any) -> tuple[NDArray[Any], ...]:
            return self._backend.embed_with_log_prob(*batch)

        return ((start, z, p) for start, (z, p) in self._stream(iterable, StreamOptions(**options), embed))

    def _stream(
        self, iterable: Iterable[str], o: StreamOptions, embed: Callable[..., tuple[NDArray[Any], ...]]
    ) -> Iterator[tuple[int, tuple[NDArray[Any], ...]]]:
        """(index of the first text, what ``embed`` makes of a window) in sequence; options are checked now."""
        o = o.settled(self._width, self._model)
        windows = o.windows(in_order(iterable), self.tokenize, self._seen.add)
        several = not isinstance(iterable, Sized) or len(iterable) > o.size
        if several and self._backend.overlaps:
            from fastflow.backends.ahead import ahead  # of a GPU

            windows = ahead(windows)
        return self._blocks(windows, o, embed)

    def _blocks(
        self, windows: Iterator[Tokens], o: StreamOptions, embed: Callable[..., tuple[NDArray[Any], ...]]
    ) -> Iterator[tuple[int, tuple[NDArray[Any], ...]]]:
        """The blocks of ``_stream``, whose options are checked."""
        start, spread = 0, self._model.spread_of(self._width, o.truncate_dim)
        for tokens in windows:
            self._count_truncated(len(tokens.cut))
            batches = self._batches(tokens, o.batch_size, o.batch_tokens)
            found = embed(tokens, batches, o.normalize_embeddings, o.truncate_dim)
            z, *rest = (check_finite(each, "text", start) for each in found)
            yield start, (quantise(z, o.precision, o.normalize_embeddings, spread, o.ranges), *rest)
            start += len(z)

    def transform(
        self,
        array: Any,
        *,
        normalize_embeddings: bool = False,
        precision: str = "float32",
        truncate_dim: int | None = None,
        ranges: Any = None,
    ) -> NDArray[Any]:
        """Calibrate pooled vectors: those of ``pool``, which gives what ``encode`` gives, or others made elsewhere.

        Args:
            array: (B, D) of floats, pooled as the model pools.
            normalize_embeddings: As in ``encode``.
            precision: As in ``encode``.
            truncate_dim: As in ``encode``.
            ranges: As in ``encode``.

        Returns:
            (B, D') in the precision asked for.

        Raises:
            FastflowError: The shape is wrong, or a row has NaN or infinity; the message names the row.

        Example:
            >>> rt = fastflow.Runtime()
            >>> rt.transform(rt.pool(["A cat sat."])).shape
            (1, 256)
        """
        check_truncation(truncate_dim, self._width)
        check_precision(precision)
        truncate_dim = truncate_dim or self._model.truncate_dim
        ranges = check_ranges(ranges, precision, truncate_dim or self._width)
        pooled = check_pooled(array, self._calibrator.pooled_dim, self.dtype)
        z = np.asarray(self._calibrator.calibrate(pooled, normalize_embeddings, truncate_dim))
        spread = self._model.spread_of(self._width, truncate_dim)
        return quantise(check_finite(z, "transform: row"), precision, normalize_embeddings, spread, ranges)

    def log_prob(
        self, inputs: Any, batch_size: int | None = None, prompt: str | None = None
    ) -> NDArray[np.float64]:  # fmt: skip
        """Natural-log densities of pooled vectors under the flow: low if few of the training corpus are like them.

        They move with the length of a text: compare texts of one length. Random letters may score as high as a
        sentence: this finds texts of another kind than the corpus, and is no test of whether a text makes sense.

        Args:
            inputs: An iterable of texts, or pooled vectors (B, D). A model without an encoder takes vectors alone.
            batch_size: As in ``encode``.
            prompt: As in ``encode``.

        Returns:
            (B,) float64. Of the training corpus the share ``likelihood.share`` is below ``likelihood.log_prob``.

        Raises:
            FastflowError: The calibration has no flow, or drops directions before it; or as ``pool`` and ``transform``.
        """
        calibrator = self._calibrator
        _ = calibrator.density  # raises if there is none, before anything is computed
        if self._tokenizer is None or getattr(inputs, "ndim", 1) == 2:
            pooled = check_pooled(inputs, calibrator.pooled_dim, self.dtype, "log_prob")
            return check_finite(calibrator.log_prob(pooled), "log_prob: row")
        return check_finite(calibrator.log_prob(self.pool(inputs, batch_size, prompt)), "text")

    def pool(
        self,
        texts: Iterable[str],
        batch_size: int | None = None,
        prompt: str | None = None,
        *,
        batch_tokens: int | None = None,
    ) -> NDArray[Any]:
        """The pooled vectors before calibration, as ``transform`` takes them.

        Args:
            texts: An iterable of texts, not a single str.
            batch_size: As in ``encode``.
            prompt: Text to put before every text. None: the model's default; ``resolve_prompt`` gives one by its name.
            batch_tokens: As in ``stream``.

        Returns:
            (B, D), in the order of the texts.

        Raises:
            FastflowError: As ``encode``.
        """
        check_count("batch_size", batch_size)
        check_count("batch_tokens", batch_tokens)
        checked, prompts = [check_text(t, i) for i, t in enumerate(in_order(texts))], self._model.prompts
        self._seen.add(checked)
        tokens = self.tokenize.prompted(checked, prompts.resolve(prompt), prompts.pooled)
        self._count_truncated(len(tokens.cut))
        return check_finite(self._backend.pool_batches(tokens, self._batches(tokens, batch_size, batch_tokens)), "text")

    def pool_tokens(self, tokens: Tokens) -> NDArray[Any]:
        """The pooled vectors of texts that are tokens already.

        Args:
            tokens: B texts, from ``tokenize_prompted``.

        Returns:
            (B, D).

        Raises:
            FastflowError: As ``encode``.
        """
        return check_finite(self._backend.pool_batches(tokens, self._batches(tokens, None, None)), "text")

    def tokenize_prompted(self, texts: Sequence[str], prompt: str = "") -> Tokens:
        """The tokens of texts, for ``embed_tokens`` and ``pool_tokens``.

        Args:
            texts: B texts.
            prompt: Text to put before every text.

        Returns:
            The tokens of B texts.

        Raises:
            FastflowError: As ``encode``.
        """
        return self.tokenize.prompted(texts, prompt, self._model.prompts.pooled)

    def embed_tokens(
        self, tokens: Tokens, normalize_embeddings: bool = False, truncate_dim: int | None = None
    ) -> NDArray[Any]:
        """Embed texts that are tokens already, with the bits that ``encode`` gives.

        Args:
            tokens: B texts, from ``tokenize_prompted``.
            normalize_embeddings: As in ``encode``.
            truncate_dim: As in ``encode``.

        Returns:
            (B, D').

        Raises:
            FastflowError: As ``encode``.
        """
        check_truncation(truncate_dim, self._width)
        truncate_dim = truncate_dim or self._model.truncate_dim
        batches = self._batches(tokens, None, None)
        return check_finite(self._backend.embed(tokens, batches, normalize_embeddings, truncate_dim), "text")

    def _batches(self, tokens: Tokens, batch_size: int | None, batch_tokens: int | None) -> Iterator[NDArray[np.int64]]:
        """Row numbers of each batch, cut by texts and by tokens."""
        return tokens.batches(batch_size or len(tokens.offsets), batch_tokens or self._backend.batch_tokens)

    @property
    def tokenize(self) -> Tokenizer:
        """Texts -> Tokens; raises a UsageError for a model without an encoder."""
        if self._tokenizer is None:
            raise no_encoder(self._model.path)
        return self._tokenizer

    @property
    def _calibrator(self) -> Calibrator:
        if self._opened is None:
            raise FastflowError("this Runtime is closed; make a new one")
        return self._opened

    @property
    def _backend(self) -> Backend:
        if not isinstance(opened := self._calibrator, Backend):
            raise no_encoder(self._model.path)
        return opened

    def _nothing(self, **options: Any) -> NDArray[Any]:
        """(0, D') as if of texts."""
        return self.transform(np.zeros((0, self._backend.pooled_dim), self.dtype), **options)

    def _count_truncated(self, texts: int) -> None:
        if texts and not self.truncated:
            warnings.warn(
                f"texts longer than {self.tokenize.max_length} tokens are cut (the model's max_length)", stacklevel=4
            )
        self.truncated += texts

    @property
    def dim(self) -> int:
        """D', the width of an embedding: all that the model computes, or its own truncate_dim."""
        return self._model.truncate_dim or self._width

    @property
    def full_dim(self) -> int:
        """All that the model computes: the most that ``truncate_dim`` may ask for."""
        return self._width

    @property
    def _width(self) -> int:
        return output_dim(self._model.calibration, self._calibrator.pooled_dim)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of embeddings: float32, or float64 when it was asked for."""
        return self._calibrator.floats

    @property
    def backend(self) -> str:
        """The backend that runs: cpu, triton, torch or reference."""
        return self._calibrator.name

    @property
    def arithmetic(self) -> str:
        """What decides the last bits of a vector, besides backend and dtype: instruction set, GPU, a library."""
        return self._calibrator.arithmetic

    @property
    def likelihood(self) -> Likelihood | None:
        """(log_prob, share): this share of the training corpus has a lower log-density; None if not recorded."""
        return self._model.likelihood if isinstance(self._model, Model) else None

    @property
    def overlaps(self) -> bool:
        """Whether texts are tokenised while the device computes, and log_prob costs another pass of the encoder."""
        return self._backend.overlaps

    @property
    def batch_tokens(self) -> int:
        """The tokens that are computed at once if nothing is asked."""
        return self._backend.batch_tokens

    @property
    def fingerprint(self) -> str:
        """sha256 that identifies model files and settings; equal fingerprints give comparable vectors."""
        return self._model.fingerprint

    def info(self) -> dict[str, Any]:
        """The model and how it runs on this machine.

        Returns:
            Backend, dtype, pooling with layer numbers, calibration, limits and more, as data that json can write.
            ``notes`` are sentences for the user, ``details`` how this machine runs the model.
        """
        from fastflow.backends.info import describe  # few programs ask

        found = describe(self._model, self._calibrator, self._arguments[0] is None)
        if self._tokenizer is None:
            return found
        length = self.tokenize.max_length
        notes = found["notes"] + self._seen.notes(self.tokenize)
        return found | {"max_length": None if length == MOST else length, "notes": notes}

    def close(self) -> None:
        """Free the weights; the Runtime cannot be used afterwards."""
        self._opened = None

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._arguments


def _rebuild(model: Any, device: str, dtype: str, threads: int | None, backend: str, allow_download: bool) -> Runtime:
    return Runtime(model, device, dtype, threads, backend=backend, allow_download=allow_download)
