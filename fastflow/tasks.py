"""Runtime methods that follow the model's settings: prompts of queries and documents, similarity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from numpy.typing import ArrayLike, NDArray

from fastflow.model import TASKS
from fastflow.stages.vectors import check_vectors

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fastflow.session import Session
    from fastflow.types import EncodeOptions, Matrix, Similarities, Similarity, Vector


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
        from fastflow.stages.similarity import SIMILARITIES

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
        from fastflow.stages.similarity import pairwise

        return pairwise(self.session.model.similarity, self._vectors(a), self._vectors(b))

    def _vectors(self, side: Any) -> NDArray[Any]:
        if isinstance(side, str) or (isinstance(side, Sequence) and all(isinstance(t, str) for t in side)):
            side = self.encode(side)
        return check_vectors(side, self.session.calibrator.floats)
