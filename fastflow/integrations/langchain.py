"""LangChain: an Embeddings for its vector stores and retrievers.

>>> from langchain_core.vectorstores import InMemoryVectorStore
>>> from fastflow.integrations.langchain import FastflowEmbeddings
>>> store = InMemoryVectorStore.from_texts(["A cat sat.", "Shares fell."], FastflowEmbeddings())
>>> store.similarity_search("kitten", k=1)[0].page_content
'A cat sat.'
"""

from __future__ import annotations

from fastflow.integrations.adapter import Source, StoreModel, library

with library("langchain-core"):
    from langchain_core.embeddings import Embeddings


class FastflowEmbeddings(Embeddings):
    """Embeds for vector stores; ``model``: a Runtime, path or Hub id; None is the packaged model."""

    def __init__(self, model: Source = None) -> None:
        self._model = StoreModel(model)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._model.documents(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self._model.query(text).tolist()
