"""LlamaIndex: a BaseEmbedding for its indexes and pipelines.

>>> from llama_index.core import Document, VectorStoreIndex
>>> from fastflow.integrations.llama_index import FastflowEmbedding
>>> documents = [Document(text="A cat sat."), Document(text="Shares fell.")]
>>> index = VectorStoreIndex.from_documents(documents, embed_model=FastflowEmbedding())
>>> index.as_retriever(similarity_top_k=1).retrieve("kitten")[0].text
'A cat sat.'
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastflow.integrations.adapter import Source, StoreModel, library

with library("llama-index-core"):
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.embeddings import BaseEmbedding


class FastflowEmbedding(BaseEmbedding):
    """Embeds for indexes; ``model``: a Runtime, path or Hub id; None is the packaged model."""

    model: Any = None  # ``StoreModel.settings``, for pickles
    _model: StoreModel = PrivateAttr()

    def __init__(self, model: Source = None, **fields: Any) -> None:
        found = StoreModel(model)
        name = f"fastflow {found.runtime.fingerprint}"  # a cache of LlamaIndex does not mix two models
        own = {"model": found.settings(), "model_name": name}
        super().__init__(**{"embed_batch_size": 1024, **fields, **own})
        self._model = found

    @classmethod
    def class_name(cls) -> str:
        return "FastflowEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._model.query(query).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._model.documents(texts).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
