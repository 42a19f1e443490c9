"""Qdrant: the settings of a collection, and texts as its points. Embed queries by ``Runtime.encode_query``.

>>> from qdrant_client import QdrantClient
>>> import fastflow
>>> from fastflow.integrations.qdrant import points, vector_params
>>> rt, client = fastflow.Runtime(), QdrantClient(":memory:")
>>> client.create_collection("pets", vectors_config=vector_params(rt))
True
>>> client.upload_points("pets", points(rt, ["A cat sat.", "Shares fell."]))
>>> client.query_points("pets", query=rt.encode_query("kitten"), limit=1).points[0].payload
{'text': 'A cat sat.'}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from fastflow.integrations.adapter import library
from fastflow.options import WINDOW
from fastflow.runtime import Runtime

with library("qdrant-client"):
    from qdrant_client.models import Distance, PointStruct, VectorParams

DISTANCES = {"cosine": "COSINE", "dot": "DOT", "euclidean": "EUCLID", "manhattan": "MANHATTAN"}


def vector_params(runtime: Runtime) -> VectorParams:
    """Return the width of the model's embeddings, and their distance."""
    return VectorParams(size=runtime.dim, distance=Distance[DISTANCES[runtime.session.model.similarity]])


def points(runtime: Runtime, texts: Iterable[str], start: int = 0) -> Iterator[PointStruct]:
    """Yield a point for each text: number from ``start`` on, embedding, and ``text`` as payload."""
    rest: Iterator[Any] = iter(texts)
    while block := list(islice(rest, WINDOW)):
        for text, vector in zip(block, runtime.encode_document(block), strict=True):
            yield PointStruct(id=start, vector=vector.tolist(), payload={"text": text})
            start += 1
