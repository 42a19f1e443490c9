"""LangChain: an Embeddings for its vector stores and retrievers.

>>> from langchain_core.vectorstores import InMemoryVectorStore
>>> from fastflow.integrations.langchain import FastflowEmbeddings
>>> store = InMemoryVectorStore.from_texts(["A cat sat.", "Shares fell."], FastflowEmbeddings())
>>> store.similarity_search("kitten", k=1)[0].page_content
'A cat sat.'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastflow.integrations.adapter import Source, StoreModel, library

with library("langchain-core"):
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings


class FastflowEmbeddings(Embeddings):
    """Embeds for vector stores; ``model``: a Runtime, path or Hub id; None is the packaged model."""

    def __init__(self, model: Source = None) -> None:
        self._model = StoreModel(model)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._model.documents(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self._model.query(text).tolist()


class FastflowCompressor(BaseDocumentCompressor):
    """Keeps the ``top_n`` best documents by a Reranker, with their ``relevance_score`` in the metadata."""

    reranker: Any
    top_n: int = 3

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        found = []
        for each in self.reranker.rank(query, [document.page_content for document in documents], self.top_n):
            kept = documents[each["corpus_id"]]
            metadata = kept.metadata | {"relevance_score": each["score"]}
            found.append(kept.model_copy(update={"metadata": metadata}))
        return found
