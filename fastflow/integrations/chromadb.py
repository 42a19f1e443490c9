"""Chroma: an embedding function, by which a collection embeds documents and queries.

>>> import chromadb
>>> from fastflow.integrations.chromadb import FastflowEmbeddingFunction
>>> collection = chromadb.EphemeralClient().create_collection("pets", embedding_function=FastflowEmbeddingFunction())
>>> collection.add(ids=["a", "b"], documents=["A cat sat.", "Shares fell."])
>>> collection.query(query_texts=["kitten"], n_results=1)["ids"]
[['a']]
"""

from __future__ import annotations

from typing import Any

from fastflow.errors import UsageError
from fastflow.integrations.adapter import Source, StoreModel, check_fingerprint, library

with library("chromadb"):
    from chromadb import Documents, EmbeddingFunction, Embeddings
    from chromadb.utils.embedding_functions import register_embedding_function

SPACES = {"cosine": "cosine", "dot": "ip", "euclidean": "l2"}


@register_embedding_function
class FastflowEmbeddingFunction(EmbeddingFunction[Documents]):
    """Embeds for a collection; ``model``: a Runtime, path or Hub id; None is the packaged model.

    ``get_collection(NAME)`` opens the same model, and refuses another; given a function, Chroma compares only its name.
    """

    def __init__(self, model: Source = None) -> None:
        self._model = StoreModel(model)
        if self._model.similarity not in SPACES:
            raise UsageError(f"Chroma has no {self._model.similarity} distance, by which this model compares")

    def __call__(self, input: Documents) -> Embeddings:
        return list(self._model.documents(input))

    def embed_query(self, input: Documents) -> Embeddings:
        return [self._model.query(text) for text in input]

    @staticmethod
    def name() -> str:
        return "fastflow"

    def default_space(self) -> str:
        return SPACES[self._model.similarity]

    def supported_spaces(self) -> list[str]:
        return ["cosine", "l2", "ip"] if self._model.similarity == "cosine" else [self.default_space()]

    def get_config(self) -> dict[str, Any]:
        return self._model.settings()

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> FastflowEmbeddingFunction:
        return FastflowEmbeddingFunction(config)

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        check_fingerprint(self._model.runtime, old_config["fingerprint"])
