"""The calls of a Runtime that go by the stored settings of a model: prompts of a task, and its similarity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.model.kinds import Model, VectorModel
from fastflow.model.prompts import TASKS
from fastflow.stages.vectors import check_vectors


class Prompting(ABC):
    """``encode`` with the prompt of a task, and ``similarity`` as the model defines it."""

    _model: Model | VectorModel

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of embeddings."""

    @abstractmethod
    def encode(self, inputs: Any = None, *arguments: Any, **options: Any) -> Any:
        """Embed one text or many."""

    def resolve_prompt(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """The text that ``encode`` puts before every text.

        Args:
            prompt: As in ``encode``.
            prompt_name: As in ``encode``.

        Returns:
            The prompt, empty if there is none.

        Raises:
            UsageError: The model has no prompt of that name.
        """
        return self._model.prompts.resolve(prompt, prompt_name)

    def prompt_of_task(self, task: str) -> str:
        """The text that ``encode_query`` or ``encode_document`` puts before every text.

        Args:
            task: query or document.

        Returns:
            The prompt, empty if the model has none for the task.
        """
        return self._model.prompts.of_task(task)

    def encode_query(
        self, inputs: str | Iterable[str], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Embed queries of a search: ``encode`` with the model's prompt ``query``, or with none if it lacks that.

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

    def encode_document(
        self, inputs: str | Iterable[str], prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Embed documents of a search: ``encode`` with the model's prompt ``document``, or none if it lacks that.

        Args:
            inputs: As in ``encode``.
            prompt_name: The name of another prompt of the model, such as passage.
            prompt: Another text to put before every document.
            **options: The other options of ``encode``.

        Returns:
            As ``encode``.

        Raises:
            FastflowError: As ``encode``.
        """
        return self._of_task(TASKS[1], inputs, prompt_name, prompt, options)

    def _of_task(self, task: str, inputs: Any, name: Any, prompt: Any, options: dict[str, Any]) -> Any:
        if name is None and prompt is None:
            prompt = self.prompt_of_task(task)
        return self.encode(inputs, prompt=prompt, prompt_name=name, **options)

    def similarity(self, a: Any, b: Any) -> NDArray[Any]:
        """Similarities of all pairs: cosines, or what the model's settings name (dot products, or distances, negated).

        Args:
            a: Embeddings (m, D'), or m texts.
            b: Embeddings (n, D'), or n texts.

        Returns:
            (m, n).

        Raises:
            FastflowError: The widths differ, or a vector is not finite.

        Example:
            >>> rt = fastflow.Runtime()
            >>> rt.similarity(["A cat sat."], ["A cat sat.", "Shares fell."]).shape
            (1, 2)
        """
        from fastflow.stages.similarity import SIMILARITIES

        return SIMILARITIES[self._model.similarity](*(self._vectors(side) for side in (a, b)))

    def _vectors(self, side: Any) -> NDArray[Any]:
        if isinstance(side, str) or (isinstance(side, Sequence) and all(isinstance(t, str) for t in side)):
            side = self.encode(side)
        return check_vectors(side, self.dtype)
