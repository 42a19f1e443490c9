"""Haystack: components that embed a query, and documents.

>>> from haystack import Document
>>> from fastflow.integrations.haystack import FastflowDocumentEmbedder, FastflowTextEmbedder
>>> len(FastflowTextEmbedder().run(text="A cat sat.")["embedding"])
256
>>> len(FastflowDocumentEmbedder().run(documents=[Document(content="A cat sat.")])["documents"][0].embedding)
256
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastflow.integrations.adapter import Source, StoreModel, library

with library("haystack-ai"):
    from haystack import Document, component, default_to_dict


class _Embedder:
    def __init__(self, model: Source = None) -> None:
        self._model = StoreModel(model)

    def to_dict(self) -> dict[str, Any]:
        """The settings by which a saved Pipeline opens the same model; it refuses another one in its place.

        ``Pipeline.loads(words, allowed_modules=["fastflow.integrations.haystack"])`` opens it.
        """
        settings: dict[str, Any] = default_to_dict(self, model=self._model.settings())
        return settings


@component
class FastflowTextEmbedder(_Embedder):
    """A query -> its embedding. ``model`` is a Runtime, a path, a Hub id, or None for the packaged model."""

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    def run(self, text: str) -> dict[str, Any]:
        """A text -> {"embedding": D' numbers}, with the model's prompt of queries."""
        return {"embedding": self._model.query(text).tolist()}


@component
class FastflowDocumentEmbedder(_Embedder):
    """Documents -> the same with embeddings of their contents. ``model`` is that of FastflowTextEmbedder."""

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Documents -> {"documents": copies}; raises a FastflowError for one without text, with its index."""
        vectors = self._model.documents(document.content for document in documents)
        return {"documents": [replace(d, embedding=v.tolist()) for d, v in zip(documents, vectors, strict=True)]}
