"""Runtime: texts -> tokens -> encoder -> pooling -> calibration -> embeddings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from numpy.typing import ArrayLike

from fastflow.compatibility import LibraryCalls, Properties, Tasks, check_foreign
from fastflow.model import Model, VectorModel
from fastflow.model.locate import resolve_model
from fastflow.options import Options, pick_texts
from fastflow.session import Session
from fastflow.transforms.calibration import check_saved, describe

if TYPE_CHECKING:
    from fastflow.types import (
        BackendName,
        Device,
        Dtype,
        FloatMatrix,
        FloatVector,
        Matrix,
        Precision,
        Scores,
        Vector,
    )  # fmt: skip


class Runtime(Tasks, Properties, LibraryCalls):
    """A model ready to embed texts; a model without an encoder only calibrates vectors.

    Threads and, without a GPU, forked processes may share it; it pickles. ``with`` or ``close`` frees memory early.

    Args:
        model: The path or Hub id of a model of fastflow, Sentence Transformers or Hugging Face; or an open model. None
            is the package's BERT, ``static`` its English token table, ``multilingual`` its table of thirty languages.
        device: auto, cpu, cuda, or cuda:N for GPU N.
        dtype: The arithmetic: auto, float32, float64, bfloat16, float16 or int8, if the backend has it.
        threads: The threads of one call. None: OMP_NUM_THREADS, else the cores of this process.
        backend: auto, cpu (compiled), triton, reference (NumPy) or torch.
        allow_download: Whether to ask the Hub; otherwise only its local cache is read.

    Raises:
        FastflowError: The model is absent, damaged or unsupported, or the choice cannot run on this machine.

    Example:
        >>> import fastflow
        >>> fastflow.Runtime().encode(["A cat sat.", "A dog ran."]).shape
        (2, 256)
    """

    def __init__(
        self, model: str | os.PathLike[str] | Model | VectorModel | None = None, device: Device = "auto",
        dtype: Dtype = "auto", threads: int | None = None, *, backend: BackendName = "auto",
        allow_download: bool = False,
    ) -> None:  # fmt: skip
        self._arguments: dict[str, Any] = {
            "model": resolve_model(model, allow_download), "device": device, "dtype": dtype, "threads": threads,
            "backend": backend, "allow_download": allow_download,
        }  # fmt: skip
        self.session = Session(**self._arguments)

    def __repr__(self) -> str:
        name = self.session.packaged or str(self.session.model.path)
        if self.session.closed:
            return f"<Runtime: {name}, closed>"
        calibration = describe(self.session.model.calibration)
        return f"<Runtime: {name}, calibration {calibration}, {self.dim} dimensions, {self.backend} {self.dtype}>"

    @overload
    def encode(  # type: ignore[overload-overlap]
        self, inputs: str, batch_size: int | None = ..., normalize_embeddings: bool = ...,
        convert_to_numpy: bool = ..., show_progress_bar: bool | None = ..., precision: Literal["float32"] = ...,
        truncate_dim: int | None = ..., prompt: str | None = ..., *, prompt_name: str | None = ...,
    ) -> FloatVector: ...  # fmt: skip

    @overload
    def encode(
        self, inputs: Iterable[str], batch_size: int | None = ..., normalize_embeddings: bool = ...,
        convert_to_numpy: Literal[True] = ..., show_progress_bar: bool | None = ...,
        precision: Literal["float32"] = ..., truncate_dim: int | None = ..., prompt: str | None = ..., *,
        prompt_name: str | None = ...,
    ) -> FloatMatrix: ...  # fmt: skip

    @overload
    def encode(  # type: ignore[overload-overlap]
        self, inputs: str, batch_size: int | None = ..., normalize_embeddings: bool = ...,
        convert_to_numpy: bool = ..., show_progress_bar: bool | None = ..., precision: Precision = ...,
        truncate_dim: int | None = ..., prompt: str | None = ..., *, prompt_name: str | None = ...,
        ranges: ArrayLike | None = ...,
    ) -> Vector: ...  # fmt: skip

    @overload
    def encode(
        self, inputs: Iterable[str], batch_size: int | None = ..., normalize_embeddings: bool = ...,
        convert_to_numpy: Literal[True] = ..., show_progress_bar: bool | None = ..., precision: Precision = ...,
        truncate_dim: int | None = ..., prompt: str | None = ..., *, prompt_name: str | None = ...,
        ranges: ArrayLike | None = ...,
    ) -> Matrix: ...  # fmt: skip

    @overload
    def encode(
        self, inputs: str | Iterable[str] | None = ..., batch_size: int | None = ..., normalize_embeddings: bool = ...,
        convert_to_numpy: bool = ..., show_progress_bar: bool | None = ..., precision: Precision = ...,
        truncate_dim: int | None = ..., prompt: str | None = ..., *, prompt_name: str | None = ...,
        sentences: str | Iterable[str] | None = ..., ranges: ArrayLike | None = ...,
    ) -> Vector | Matrix | list[Vector]: ...  # fmt: skip

    def encode(
        self, inputs: str | Iterable[str] | None = None, batch_size: int | None = None,
        normalize_embeddings: bool = False, convert_to_numpy: bool = True, show_progress_bar: bool | None = None,
        precision: Precision = "float32", truncate_dim: int | None = None, prompt: str | None = None, *,
        prompt_name: str | None = None, sentences: str | Iterable[str] | None = None,
        ranges: ArrayLike | None = None, **foreign: object,
    ) -> Vector | Matrix | list[Vector]:  # fmt: skip
        """Embed one text or many.

        Args:
            inputs: A text, or an iterable of texts, read at once; ``stream`` reads lazily.
            batch_size: The most texts computed at once. None: their tokens decide.
            normalize_embeddings: Whether to divide each vector by its L2 norm, after truncation.
            convert_to_numpy: False returns a list of NumPy vectors (D',).
            show_progress_bar: True shows progress on standard error.
            precision: float32, float16, int8 or uint8, an array of that dtype; binary (int8) or ubinary (uint8), the
                signs of eight dimensions in a byte, (B, D'/8).
            truncate_dim: How many numbers of a vector to keep. ``info()["truncation"]`` says whether the model rotates
                vectors first, so that the leading numbers matter most.
            prompt: Text to put before every text. None: the model's prompt ``prompt_name``, or its default.
            prompt_name: The name of a prompt of the model.
            sentences: The older name of ``inputs``.
            ranges: (2, D'), the minimum and maximum of each dimension for int8 and uint8, as ``quantize_embeddings``
                of Sentence Transformers. None: one range about 0 for all dimensions, which keeps cosines.
            **foreign: Other options of Sentence Transformers, refused with a remedy.

        Returns:
            (D',) for one text; (B, D') for many, in their order. The packaged model's last number is always 0.

        Raises:
            FastflowError: A text is not a str, or its vector is not finite; the message names its index.
            UsageError: An option does not fit the model.

        Example:
            >>> fastflow.Runtime().encode("A cat sat.", truncate_dim=64).shape
            (64,)
        """
        if foreign:
            check_foreign(foreign, self.device)
        options = Options(
            batch_size, normalize_embeddings, precision, truncate_dim, prompt, prompt_name=prompt_name, ranges=ranges
        )
        out = self.session.encode(pick_texts(inputs, sentences), options, bool(show_progress_bar))
        return out if convert_to_numpy or out.ndim == 1 else list(out)

    def stream(
        self, iterable: Iterable[str], batch_size: int | None = None, normalize_embeddings: bool = False,
        precision: Precision = "float32", truncate_dim: int | None = None, prompt: str | None = None,
        batch_tokens: int | None = None, window: int | None = None, prompt_name: str | None = None,
        ranges: ArrayLike | None = None,
    ) -> Iterator[tuple[int, Matrix]]:  # fmt: skip
        """Embed texts in blocks, in their order and in constant memory.

        Args:
            iterable: The texts; an iterator is read lazily.
            batch_size, normalize_embeddings, precision, truncate_dim, prompt: As in ``encode``.
            batch_tokens: The most tokens computed at once, padding counted. None: the backend decides.
            window: How many texts a block has, in memory together. None: 4,096.
            prompt_name, ranges: As in ``encode``.

        Yields:
            (index of the first text, embeddings (b, D')).

        Raises:
            FastflowError: As ``encode``.

        Example:
            >>> [(start, z.shape) for start, z in fastflow.Runtime().stream(["A cat."] * 3, window=2)]
            [(0, (2, 256)), (2, (1, 256))]
        """
        options = Options(
            batch_size, normalize_embeddings, precision, truncate_dim, prompt, batch_tokens, window, prompt_name, ranges
        )  # fmt: skip
        return self.session.blocks(iterable, options)

    def transform(
        self, array: ArrayLike, *, normalize_embeddings: bool = False, precision: Precision = "float32",
        truncate_dim: int | None = None, ranges: ArrayLike | None = None,
    ) -> Matrix:  # fmt: skip
        """Calibrate pooled vectors, from ``pool`` or made elsewhere; ``transform(pool(texts))`` is ``encode(texts)``.

        Args:
            array: (B, D) of floats, pooled as the model pools.
            normalize_embeddings, precision, truncate_dim, ranges: As in ``encode``.

        Returns:
            (B, D') in the precision asked for.

        Raises:
            FastflowError: The shape is wrong, or a row, which is named, has NaN or infinity.

        Example:
            >>> rt = fastflow.Runtime()
            >>> rt.transform(rt.pool(["A cat sat."])).shape
            (1, 256)
        """
        options = Options(None, normalize_embeddings, precision, truncate_dim, ranges=ranges)
        return self.session.transform(array, options)

    def log_prob(
        self, inputs: Iterable[str] | ArrayLike, batch_size: int | None = None, prompt: str | None = None
    ) -> Scores:
        """Compute natural-log densities under the flow; texts unlike the training corpus have low ones.

        Compare texts of one length. Random letters may score as high as a sentence.

        Args:
            inputs: An iterable of texts, or pooled vectors (B, D). A model without an encoder takes only vectors.
            batch_size, prompt: As in ``encode``.

        Returns:
            (B,) float64.

        Raises:
            FastflowError: The calibration has no flow, or drops directions before the flow.
        """
        return self.session.log_prob(inputs, batch_size, prompt)

    def pool(
        self, texts: Iterable[str], batch_size: int | None = None, prompt: str | None = None, *,
        batch_tokens: int | None = None,
    ) -> Matrix:  # fmt: skip
        """Pool texts without calibration, as input of ``transform``.

        Args:
            texts: An iterable of texts, not a single str.
            batch_size: As in ``encode``.
            prompt: Text to put before every text. None: the model's default.
            batch_tokens: As in ``stream``.

        Returns:
            (B, D), in the order of the texts.

        Raises:
            FastflowError: As ``encode``.
        """
        return self.session.pool(texts, batch_size, prompt, batch_tokens)

    def close(self) -> None:
        """Free the weights; the Runtime cannot be used afterwards."""
        self.session.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        check_saved(self.session.model.calibration)
        return partial(type(self), **self._arguments), ()
