"""Runtime: texts -> tokens -> encoder -> pooling -> calibration -> embeddings."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.backends.ahead import ahead
from fastflow.backends.base import Backend, Calibrator
from fastflow.backends.choose import open_backend, open_calibrator
from fastflow.backends.info import describe
from fastflow.errors import FastflowError, UsageError
from fastflow.model.artifact import DEFAULT, Opening, located
from fastflow.model.fragmentation import Seen
from fastflow.model.kinds import Model, VectorModel, no_encoder
from fastflow.model.likelihood import Likelihood
from fastflow.model.tokens import Tokenizer, Tokens
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
from fastflow.values import short


class Runtime(Prompting):
    """A model ready to embed texts; one without an encoder calibrates vectors alone.

    Safe to call from several threads; survives fork; pickles to its path.

    ``model``: a fastflow model directory, one that Sentence Transformers saved, or a Hugging Face encoder directory; or
    the Hub id of one; None is the model in the package; or a model that is open already.
    ``device``: auto, cpu or cuda. ``dtype``: the encoder's arithmetic, auto, float32, float64, bfloat16, float16 or
    int8, if the backend has it; without an encoder that of the calibration, float32 or float64.
    ``threads``: None is OMP_NUM_THREADS, else the cores that the machine allows this process.
    ``backend``: auto, cpu (compiled), triton, reference (NumPy) or torch.
    ``allow_download``: a Hub id, and the encoder of a model that only names it on the Hub, may be fetched; else it has
    to lie in the local Hub cache, and nothing here touches the network.
    Raises FastflowError for a model that is absent, damaged or unsupported, and for a choice that cannot run here.
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
                self._tokenizer = opening.model.tokenizer()
                self._opened = open_backend(opening.model, backend, device, dtype, threads)
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
        """Embed one text, (D',), or many, (B, D') in their order; an empty list gives (0, D').

        An iterator of texts is listed first; ``stream`` takes it as it comes.

        ``batch_size`` caps the texts in a batch (None: batches are cut by tokens). ``truncate_dim`` keeps the leading
        directions of a model that holds their order (``info()["truncation"]``), else the first dimensions; all D' of
        them keep every cosine. ``normalize_embeddings`` divides by the L2 norm after. ``precision``: float32, float16,
        int8, uint8, binary or ubinary. ``ranges`` (2, D') are the minima and maxima that int8 and uint8 cut into 256
        steps, as ``quantize_embeddings`` of Sentence Transformers does; without them the model's own range, which is
        one for all dimensions, is taken. ``prompt`` is put before every text, or the model's prompt ``prompt_name``, or
        else the model's default. ``convert_to_numpy=False`` gives a list of vectors. ``sentences`` is the older name of
        ``inputs``.
        Raises a FastflowError for a text that is no str, and if a text's vector is not finite; both name its index.
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
        """Yield (index of the first text, embeddings (b, D')) block after block, in order and in constant memory.

        ``batch_tokens``: the tokens of a batch, padding counted; None leaves it to the backend. ``window``: the texts
        of a block, which are held and sorted by length together. ``ranges`` are those of ``encode``.
        Raises as ``encode`` does.
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
        """``stream``, whose options these are, with the log-density (b,) of each text after its embedding.

        Embeddings have the bits that ``stream`` gives. Raises as ``stream`` and ``log_prob`` do.
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
        return self._blocks(ahead(windows) if several and self._backend.overlaps else windows, o, embed)

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
        """Calibrate pooled vectors (B, D) made elsewhere: (B, D'), shortened and stored as ``encode`` does.

        ``ranges`` are those of ``encode``.
        Raises a FastflowError on a wrong shape, and on NaN or infinity, naming the row.
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
        """(B,) natural-log densities of texts, or of pooled vectors (B, D), under the flow (``stages.density``).

        A text that is unlike those the flow was fitted to has a low one; ``likelihood`` gives the bound. Texts and
        arrays are those of ``pool`` and ``transform``; a model without an encoder takes vectors alone.
        Raises a FastflowError for a calibration without a flow, and as ``pool`` and ``transform`` do.
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
        """The pooled vectors (B, D) before calibration, as ``transform`` takes them; ``prompt`` as in ``encode``,
        ``batch_tokens`` as in ``stream``.

        Raises as ``encode`` does.
        """
        check_count("batch_size", batch_size)
        check_count("batch_tokens", batch_tokens)
        checked, prompts = [check_text(t, i) for i, t in enumerate(in_order(texts))], self._model.prompts
        self._seen.add(checked)
        tokens = self.tokenize.prompted(checked, prompts.resolve(prompt), prompts.pooled)
        self._count_truncated(len(tokens.cut))
        return check_finite(self._backend.pool_batches(tokens, self._batches(tokens, batch_size, batch_tokens)), "text")

    def pool_tokens(self, tokens: Tokens) -> NDArray[Any]:
        """The pooled vectors (B, D) of B texts that ``tokenize_prompted`` made tokens of; raises as ``encode`` does."""
        return check_finite(self._backend.pool_batches(tokens, self._batches(tokens, None, None)), "text")

    def tokenize_prompted(self, texts: Sequence[str], prompt: str = "") -> Tokens:
        """The tokens of ``texts`` with ``prompt`` before each, for ``embed_tokens``; raises as ``encode`` does."""
        return self.tokenize.prompted(texts, prompt, self._model.prompts.pooled)

    def embed_tokens(
        self, tokens: Tokens, normalize_embeddings: bool = False, truncate_dim: int | None = None
    ) -> NDArray[Any]:
        """(B, D') embeddings of B texts that ``tokenize_prompted`` made tokens of, with the bits that ``encode`` gives.

        Raises as ``encode`` does.
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
        """The log_prob below which few texts of the fitted corpus are, and their share; None where not recorded."""
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
        """The model and how it runs: backend, dtype, pooling with layer numbers, calibration, limits.

        ``notes`` are for the user: a step down, or that the first texts do not suit the encoder's vocabulary.
        ``details`` are how this machine runs the model.
        """
        found = describe(self._model, self._calibrator, self._arguments[0] is None)
        return found if self._tokenizer is None else found | {"notes": found["notes"] + self._seen.notes(self.tokenize)}

    def close(self) -> None:
        """Let go of weights; the Runtime cannot be used afterwards."""
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
