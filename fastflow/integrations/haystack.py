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
        """Return settings; ``Pipeline.loads(words, allowed_modules=["fastflow.integrations.haystack"])`` opens them."""
        settings: dict[str, Any] = default_to_dict(self, model=self._model.settings())
        return settings


@component
class FastflowTextEmbedder(_Embedder):
    """Embed a query; ``model``: a Runtime, path or Hub id; None is the packaged model."""

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator]
    def run(self, text: str) -> dict[str, Any]:
        return {"embedding": self._model.query(text).tolist()}


@component
class FastflowDocumentEmbedder(_Embedder):
    """Embed documents; ``model``: a Runtime, path or Hub id; None is the packaged model."""

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, documents: list[Document]) -> dict[str, Any]:
        vectors = self._model.documents(document.content for document in documents)
        return {"documents": [replace(d, embedding=v.tolist()) for d, v in zip(documents, vectors, strict=True)]}
