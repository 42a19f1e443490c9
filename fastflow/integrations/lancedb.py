"""LanceDB: an embedding function, by which a table embeds a column and queries.

>>> import lancedb, tempfile
>>> from lancedb.embeddings import EmbeddingFunctionConfig
>>> from fastflow.integrations.lancedb import FastflowEmbeddings
>>> columns = {"source_column": "text", "vector_column": "vector"}
>>> config = EmbeddingFunctionConfig(function=FastflowEmbeddings.create(), **columns)
>>> rows = [{"text": "A cat sat."}, {"text": "Shares fell."}]
>>> table = lancedb.connect(tempfile.mkdtemp()).create_table("pets", rows, embedding_functions=[config])
>>> table.search("kitten").limit(1).to_list()[0]["text"]
'A cat sat.'
"""

from __future__ import annotations

from typing import Any

from fastflow.integrations.adapter import StoreModel, library

with library("lancedb"):
    from lancedb.embeddings import TextEmbeddingFunction, register
    from pydantic import PrivateAttr


@register("fastflow")
class FastflowTextEmbeddings(TextEmbeddingFunction):
    """Embeds for a table; ``create(model=...)``: a Runtime, path or Hub id; None is the packaged model.

    A table opens the same model again, and refuses another.
    """

    model: Any = None
    max_retries: int = 0  # an error would repeat at every attempt
    _model: StoreModel = PrivateAttr()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self._model = StoreModel(self.model)

    def ndims(self) -> int:
        return self._model.runtime.dim

    def generate_embeddings(self, texts: Any, *_: Any, **__: Any) -> list[Any]:
        return list(self._model.documents(texts))

    def compute_query_embeddings(self, query: str, *_: Any, **__: Any) -> list[Any]:
        return [self._model.query(query)]

    def safe_model_dump(self) -> dict[str, Any]:
        return {"model": self._model.settings()}
