"""A Runtime's properties, methods that other libraries call, and errors for options that ``encode`` lacks.

KeyBERT and BERTopic silently load another model unless the given model is an instance of their BaseEmbedder.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, overload

from numpy.typing import ArrayLike, NDArray

from fastflow.errors import UsageError
from fastflow.model import TASKS, Model
from fastflow.transforms import calibration
from fastflow.transforms.vectors import check_vectors
from fastflow.values import short

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fastflow.model.tokenizer import Tokenizer
    from fastflow.session import Session
    from fastflow.types import EncodeOptions, Info, Matrix, Similarities, Similarity, Vector


BASES = ("keybert.backend", "bertopic.backend")  # modules with a BaseEmbedder
ELSEWHERE = {  # option of Sentence Transformers' encode -> (values without effect, the remedy)
    "convert_to_tensor": ((False, None), "encode gives NumPy arrays: leave it out, and use torch.from_numpy"),
    "device": ((None,), "a Runtime stays on its device: give it to Runtime(model, device=...)"),
    "output_value": (("sentence_embedding",), "encode gives embeddings of whole texts alone"),
    "pool": ((None,), "a Runtime computes with threads: leave it out, and see threads of Runtime"),
    "chunk_size": ((None,), "a Runtime computes with threads: leave it out, and see threads of Runtime"),
    "num_workers": ((None, 0), "a Runtime computes with threads: leave it out, and see threads of Runtime"),
    "normalize": ((), "the option is called normalize_embeddings"),
    "dim": ((), "the option is called truncate_dim"),
    "dtype": ((), "give it to Runtime(model, dtype=...); the numbers of the result are the option precision"),
    "max_length": ((), "the model sets it: fit the model with max_length"),
}  # fmt: skip


def check_foreign(options: Mapping[str, object], device: str) -> None:
    """Raise a UsageError for options that ``encode`` lacks, unless their value has no effect."""
    for name, value in options.items():
        if name not in ELSEWHERE:
            raise UsageError(f"encode has no option {name!r}; docs/api.md lists those it has")
        nothing, instead = ELSEWHERE[name]
        same = name == "device" and str(value).partition(":")[0] == device
        if not same and not any(value is each or value == each for each in nothing):
            raise UsageError(f"encode has no option {name}={short(value)}: {instead}")


class Properties:
    """The properties of a Runtime."""

    session: Session

    @property
    def dim(self) -> int:
        """The width D' of an embedding: the model's own truncate_dim, else its full width."""
        return self.session.model.truncate_dim or self.session.width

    @property
    def device(self) -> str:
        """cpu or cuda."""
        return self.session.calibrator.device

    @property
    def dtype(self) -> str:
        """The arithmetic: float32, bfloat16, float16, int8 or float64. Only float64 gives float64 vectors."""
        return self.session.calibrator.dtype

    @property
    def backend(self) -> str:
        """The backend: cpu, triton, torch or reference."""
        return self.session.calibrator.name

    @property
    def fingerprint(self) -> str:
        """sha256 that identifies model files and settings; equal fingerprints give comparable vectors."""
        return self.session.model.fingerprint

    @property
    def truncated(self) -> int:
        """The number of texts cut at ``max_length`` so far."""
        return self.session.truncated

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer: B texts -> Tokens, ``ids`` (N,) and ``offsets`` (B+1,). A UsageError without an encoder."""
        return self.session.tokenizer

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name; most models have none."""
        return dict(self.session.model.prompts.texts)

    @property
    def max_length(self) -> int | None:
        """The most tokens kept of a text; None: no limit. A UsageError without an encoder."""
        return self.session.max_length

    @property
    def max_seq_length(self) -> int | None:
        """The same as ``max_length``."""
        return self.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: object) -> NoReturn:
        raise UsageError(f"max_seq_length is the model's, {self.max_length}: fit the model with another max_length")

    def get_max_seq_length(self) -> int | None:
        """Return ``max_length``, by its name in Sentence Transformers.

        Returns:
            The most tokens kept of a text.
        """
        return self.max_length

    def get_embedding_dimension(self) -> int:
        """Return ``dim``, by its name in Sentence Transformers.

        Returns:
            D'.
        """
        return self.dim

    def get_sentence_embedding_dimension(self) -> int:
        """Return ``dim``, by its name in Sentence Transformers.

        Returns:
            D'.
        """
        return self.dim

    def info(self) -> Info:
        """Describe the model and how it runs on this machine.

        Returns:
            Backend, dtype, pooling, calibration, limits and more, for JSON. ``notes`` and ``details`` are
            sentences.
        """
        session, runs = self.session, self.session.calibrator
        model = session.model
        texts = model if isinstance(model, Model) else None
        return {
            "model": session.packaged or str(model.path),
            "fingerprint": model.fingerprint,
            "takes": "vectors" if texts is None else "texts",
            "backend": runs.name,
            "device": runs.device,
            "dtype": runs.dtype,
            "dim": self.dim,
            "pooled_dim": runs.pooled_dim,
            "pooling": None if texts is None else texts.pooling.describe(),
            "max_length": None if texts is None else session.max_length,
            "tokenizer": None if texts is None else session.tokenizer.runs,
            "modules": None if model.modules is None else model.modules.names(),
            "prompts": self.prompts,
            "default_prompt": model.prompts.default,
            "similarity": model.similarity,
            "calibration": calibration.describe(model.calibration),
            "truncation": model.describe_truncation(),
            "notes": [
                *([model.note] if model.note else []),
                *runs.notes,
                *([f"texts embedded so far: {session.unsuited}"] if session.unsuited else []),
            ],
            "details": list(runs.details),
        }


@cache
def kind_of(own: type, bases: tuple[type, ...]) -> type:
    """Make a subclass of ``own`` and ``bases``, for isinstance only."""
    return type(own.__name__, (own, *bases), {"__module__": own.__module__, "__doc__": own.__doc__})


class LibraryCalls:
    """The methods by which KeyBERT, BERTopic and LangChain call a model."""

    encode: Any
    encode_query: Any
    encode_document: Any

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        bases = tuple(sys.modules[name].BaseEmbedder for name in BASES if name in sys.modules)
        return kind_of(type(self), bases) if bases else type(self)  # type: ignore[arg-type]

    def embed(self, documents: Iterable[str], verbose: bool = False) -> Matrix:
        """Embed texts; KeyBERT calls this.

        Args:
            documents: B texts.
            verbose: Whether to show progress.

        Returns:
            (B, D').

        Raises:
            FastflowError: As ``encode``.
        """
        found: Matrix = self.encode(list(documents), show_progress_bar=verbose)
        return found

    def embed_words(self, words: Iterable[str], verbose: bool = False) -> Matrix:
        """Embed words of topics; BERTopic calls this.

        Args:
            words: B words.
            verbose: Whether to show progress.

        Returns:
            (B, D').

        Raises:
            FastflowError: As ``encode``.
        """
        return self.embed(words, verbose)

    def embed_documents(self, document: Iterable[str], verbose: bool = False) -> Matrix:
        """Embed documents; BERTopic and LangChain call this.

        Args:
            document: B texts.
            verbose: Whether to show progress.

        Returns:
            (B, D').

        Raises:
            FastflowError: As ``encode``.
        """
        found: Matrix = self.encode_document(list(document), show_progress_bar=verbose)
        return found

    def embed_query(self, text: str) -> Vector:
        """Embed a query; LangChain calls this.

        Args:
            text: A text.

        Returns:
            (D',).

        Raises:
            FastflowError: As ``encode``.
        """
        found: Vector = self.encode_query(text)
        return found


class Tasks(ABC):
    """``encode`` with the prompt of a task, and ``similarity`` as the model defines it."""

    session: Session

    @abstractmethod
    def encode(self, inputs: Any = None, *arguments: Any, **options: Any) -> Any:
        """Embed one text or many."""

    @overload
    def encode_query(  # type: ignore[overload-overlap]
        self, inputs: str, prompt_name: str | None = ..., prompt: str | None = ..., **options: Unpack[EncodeOptions]
    ) -> Vector: ...

    @overload
    def encode_query(
        self, inputs: Iterable[str], prompt_name: str | None = ..., prompt: str | None = ...,
        **options: Unpack[EncodeOptions],
    ) -> Matrix: ...  # fmt: skip

    def encode_query(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Vector | Matrix:
        """Embed queries of a search: ``encode`` with the model's prompt ``query``, or none.

        Args:
            inputs: As in ``encode``.
            prompt_name: The name of another prompt of the model.
            prompt: Another text to put before every query.
            **options: The other options of ``encode``.

        Returns:
            As ``encode``.

        Raises:
            FastflowError: As ``encode``.
        """
        return self._of_task(TASKS[0], inputs, prompt_name, prompt, options)

    @overload
    def encode_document(  # type: ignore[overload-overlap]
        self, inputs: str, prompt_name: str | None = ..., prompt: str | None = ..., **options: Unpack[EncodeOptions]
    ) -> Vector: ...

    @overload
    def encode_document(
        self, inputs: Iterable[str], prompt_name: str | None = ..., prompt: str | None = ...,
        **options: Unpack[EncodeOptions],
    ) -> Matrix: ...  # fmt: skip

    def encode_document(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Vector | Matrix:
        """Embed documents of a search: ``encode`` with the model's prompt ``document``, or none.

        Args:
            inputs: As in ``encode``.
            prompt_name: The name of another prompt of the model.
            prompt: Another text to put before every document.
            **options: The other options of ``encode``.

        Returns:
            As ``encode``.

        Raises:
            FastflowError: As ``encode``.
        """
        return self._of_task(TASKS[1], inputs, prompt_name, prompt, options)

    def _of_task(self, task: str, inputs: Any, name: str | None, prompt: str | None, options: Any) -> Any:
        if name is None and prompt is None:
            prompt = self.session.model.prompts.of_task(task)
        return self.encode(inputs, prompt=prompt, prompt_name=name, **options)

    def similarity(self, a: Sequence[str] | ArrayLike, b: Sequence[str] | ArrayLike) -> Similarities:
        """Compare all pairs, by cosine or as the model's settings name (dot product, or negated distance).

        Args:
            a: Embeddings (m, D'), or m texts.
            b: Embeddings (n, D'), or n texts.

        Returns:
            (m, n); cosines are from -1 to 1.

        Raises:
            FastflowError: The widths differ, or a vector is not finite.

        Example:
            >>> rt = fastflow.Runtime()
            >>> rt.similarity(["A cat sat."], ["A cat sat.", "Shares fell."]).shape
            (1, 2)
        """
        from fastflow.transforms.vectors import SIMILARITIES

        return SIMILARITIES[self.session.model.similarity](self._vectors(a), self._vectors(b))

    def similarity_pairwise(self, a: Sequence[str] | ArrayLike, b: Sequence[str] | ArrayLike) -> Similarity:
        """Compare row i of ``a`` with row i of ``b``, as ``similarity`` does.

        Args:
            a: Embeddings (m, D'), or m texts.
            b: Embeddings (m, D'), or m texts.

        Returns:
            (m,).

        Raises:
            FastflowError: The numbers of rows or the widths differ, or a vector is not finite.

        Example:
            >>> fastflow.Runtime().similarity_pairwise(["A cat.", "A dog."], ["A cat.", "Rain."]).shape
            (2,)
        """
        from fastflow.transforms.vectors import pairwise

        return pairwise(self.session.model.similarity, self._vectors(a), self._vectors(b))

    def _vectors(self, side: Any) -> NDArray[Any]:
        if isinstance(side, str) or (isinstance(side, Sequence) and all(isinstance(t, str) for t in side)):
            side = self.encode(side)
        return check_vectors(side, self.session.calibrator.floats)
