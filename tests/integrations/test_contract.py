"""The contract of every adapter.

It gives the model's vectors. Its store finds the rows that the model finds, refuses another model, and refuses a
Runtime without the adapter.
"""

from __future__ import annotations

import doctest
import importlib
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fastflow
from fastflow.integrations.adapter import ensure_runtime

from support.doors import TEXTS, exchange, nearest, unit

pytestmark = pytest.mark.doors
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before the library is imported
QUERIES = ("kitten", "stock exchange", "central bank")


class Door(NamedTuple):
    """A library: ``make`` its adapter of a model; ``keep`` TEXTS in a store, which the result opens again; ``find`` the
    number of a text; vectors of ``documents`` and of a ``query``; ``give`` it a Runtime without the adapter.
    """

    make: Callable[[Any], Any]
    keep: Callable[[Any], Callable[[], Any]]
    find: Callable[[Any, str], int] | None = None
    documents: Callable[[Any], Any] | None = None
    query: Callable[[Any], Any] | None = None
    give: tuple[Callable[[Any], Any], ...] = ()
    kind: Any = ValueError
    said: str | None = None


def chromadb(folder: Path) -> Door:
    import chromadb

    from fastflow.integrations.chromadb import FastflowEmbeddingFunction as Function

    def client():
        return chromadb.PersistentClient(str(folder), settings=chromadb.Settings(anonymized_telemetry=False))

    def keep(model):
        made = client().create_collection("texts", embedding_function=Function(model))
        made.add(ids=list("0123"), documents=TEXTS)
        return lambda: client().get_collection("texts")

    return Door(
        Function,
        keep,
        lambda store, query: int(store.query(query_texts=[query], n_results=1)["ids"][0][0]),
        lambda made: made(TEXTS),
        lambda made: made.embed_query(TEXTS[:1])[0],
        (lambda rt: client().create_collection("alone", embedding_function=rt),),
        (ValueError, AttributeError),
        r"Expected EmbeddingFunction\.__call__|no attribute 'name'",
    )


def lancedb(folder: Path) -> Door:
    import lancedb
    from lancedb.embeddings import EmbeddingFunctionConfig

    from fastflow.integrations.lancedb import FastflowTextEmbeddings

    config = partial(EmbeddingFunctionConfig, source_column="text", vector_column="vector")

    def make(model):
        return FastflowTextEmbeddings.create(model=model)

    def keep(model):
        rows = [{"text": text} for text in TEXTS]
        lancedb.connect(folder).create_table("texts", rows, embedding_functions=[config(function=make(model))])
        return lambda: lancedb.connect(folder).open_table("texts")

    return Door(
        make,
        keep,
        lambda store, query: TEXTS.index(store.search(query).limit(1).to_list()[0]["text"]),
        lambda made: made.generate_embeddings(TEXTS),
        lambda made: made.compute_query_embeddings(TEXTS[0])[0],
        (lambda rt: config(function=rt),),
        ValueError,
        "Input should be a valid dictionary or instance of Embedding",
    )


def txtai(folder: Path) -> Door:
    from txtai import Embeddings

    def make(model):
        return Embeddings(path=model, method="fastflow.integrations.txtai.FastflowVectors")

    def keep(model):
        made = make(model)
        made.index(TEXTS)
        made.save(str(folder / "index"))
        return load

    def load():
        again = Embeddings()
        again.load(str(folder / "index"))
        return again

    return Door(
        make,
        keep,
        lambda store, query: store.search(query, 1)[0][0],
        lambda made: made.batchtransform(TEXTS, "data"),
        lambda made: made.transform(TEXTS[0]),
        tuple(lambda rt, name=name: Embeddings(**{name: rt}).index(TEXTS) for name in ("path", "transform", "method")),
        (AttributeError, TypeError, AssertionError, ImportError, fastflow.UsageError),
    )


def haystack(folder: Path) -> Door:
    from haystack import Document, Pipeline
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.core.errors import PipelineValidationError
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    from fastflow.integrations.haystack import FastflowDocumentEmbedder, FastflowTextEmbedder

    store, given = InMemoryDocumentStore(), [Document(content=text, meta={"n": 1}) for text in TEXTS]  # by dot products

    def embed(model):
        found = FastflowDocumentEmbedder(model).run(documents=given)["documents"]
        assert [(d.id, d.content, d.meta, d.embedding) for d in given] == [
            (f.id, f.content, f.meta, None) for f in found
        ]
        return found

    def keep(model):
        store.write_documents(embed(model))
        words = []
        for made in (FastflowDocumentEmbedder(model), FastflowTextEmbedder(model)):
            pipeline = Pipeline()
            pipeline.add_component("embed", made)
            words.append(pipeline.dumps())
        return lambda: [Pipeline.loads(w, allowed_modules=["fastflow.integrations.haystack"]) for w in words][1]

    def find(pipeline, query):
        if "find" not in pipeline.graph:
            pipeline.add_component("find", InMemoryEmbeddingRetriever(store, top_k=1))
            pipeline.connect("embed.embedding", "find.query_embedding")
        return TEXTS.index(pipeline.run({"embed": {"text": query}})["find"]["documents"][0].content)

    return Door(
        FastflowTextEmbedder,
        keep,
        find,
        lambda made: [each.embedding for each in embed(made._model.runtime)],
        lambda made: made.run(text=TEXTS[0])["embedding"],
        (lambda rt: Pipeline().add_component("embed", rt),),
        PipelineValidationError,
        "doesn't seem to be a component",
    )


def langchain(folder: Path) -> Door:
    from langchain_core.vectorstores import InMemoryVectorStore

    from fastflow.integrations.langchain import FastflowTextEmbeddings

    return Door(  # a Runtime is an Embeddings of its own: tests/test_compatibility.py
        FastflowTextEmbeddings,
        lambda model: partial(InMemoryVectorStore.from_texts, TEXTS, FastflowTextEmbeddings(model)),
        lambda store, query: TEXTS.index(store.similarity_search(query, k=1)[0].page_content),
        lambda made: made.embed_documents(TEXTS),
        lambda made: made.embed_query(TEXTS[0]),
    )


def llama_index(folder: Path) -> Door:
    from llama_index.core import Document, VectorStoreIndex

    from fastflow.integrations.llama_index import FastflowEmbedding

    index = partial(VectorStoreIndex.from_documents, [Document(text=text) for text in TEXTS])

    def keep(model):
        words = pickle.dumps(FastflowEmbedding(model))
        return lambda: index(embed_model=pickle.loads(words))

    return Door(
        FastflowEmbedding,
        keep,
        lambda store, query: TEXTS.index(store.as_retriever(similarity_top_k=1).retrieve(query)[0].text),
        lambda made: made.get_text_embedding_batch(TEXTS),
        lambda made: made.get_query_embedding(TEXTS[0]),
        (lambda rt: index(embed_model=rt),),
        AssertionError,
    )


def qdrant(folder: Path) -> Door:
    from qdrant_client import QdrantClient
    from qdrant_client.models import Document

    from fastflow.integrations.qdrant import points, vector_params

    client = QdrantClient(":memory:")

    def keep(model):
        runtime = ensure_runtime(model)
        client.create_collection("texts", vectors_config=vector_params(runtime))
        client.upload_points("texts", points(runtime, TEXTS))
        return lambda: runtime

    def give(rt):
        keep(rt)
        client.query_points("texts", query=rt)

    return Door(
        points,
        keep,
        lambda rt, query: client.query_points("texts", query=rt.encode_query(query), limit=1).points[0].id,
        give=(give, lambda rt: Document(text="a dog", model=rt)),
        said="Unsupported query type|Input should be a valid string",
    )


def sklearn(folder: Path) -> Door:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from fastflow.integrations.sklearn import FastflowTransformer

    def keep(model):
        words = pickle.dumps(FastflowTransformer(model).fit(TEXTS))
        return lambda: pickle.loads(words)

    def give(rt):
        make_pipeline(rt, LogisticRegression()).fit(TEXTS, [0, 0, 1, 1])

    return Door(
        FastflowTransformer, keep, give=(give,), kind=TypeError, said="should be transformers and implement fit"
    )


DOORS = (chromadb, lancedb, txtai, haystack, langchain, llama_index, qdrant, sklearn)


def each(*without: Callable[[Path], Door]) -> Any:
    doors = [door for door in DOORS if door not in without]
    return pytest.mark.parametrize("door", doors, ids=[door.__name__ for door in doors], indirect=True)


@pytest.fixture
def door(request, tmp_path, monkeypatch) -> Door:
    """The library; models of Chroma and txtai themselves cannot be loaded."""
    if request.param is chromadb:
        refuse = lambda self, input: pytest.fail("its own")  # noqa: E731 (Chroma looks at the names)
        monkeypatch.setattr("chromadb.api.types.DefaultEmbeddingFunction.__call__", refuse)
    if request.param is txtai:
        from txtai.vectors import HFVectors

        own = HFVectors.loadmodel
        only = lambda self, path: pytest.fail("its own") if isinstance(path, str) else own(self, path)  # noqa: E731
        monkeypatch.setattr(HFVectors, "loadmodel", only)
    (tmp_path / "db").mkdir()
    return request.param(tmp_path / "db")


@pytest.mark.parametrize("name", [door.__name__ for door in DOORS])
def test_the_example_runs(name):
    found = doctest.testmod(importlib.import_module(f"fastflow.integrations.{name}"))
    assert (found.failed, found.attempted > 0) == (0, True)


@each(qdrant, sklearn)
def test_its_vectors_are_the_models(door, prompted):
    made, runtime = door.make(str(prompted)), fastflow.Runtime(prompted)
    assert np.allclose(np.array(door.documents(made)), unit(runtime.encode_document(TEXTS)), atol=1e-6)
    assert np.allclose(np.array(door.query(made)), unit(runtime.encode_query(TEXTS[0])), atol=1e-6)


@each(sklearn)
@pytest.mark.parametrize("given", ["runtime", None])
def test_a_store_finds_what_the_model_finds_once_it_is_opened_again(door, rt, given):
    store = door.keep(rt if given else None)()
    assert [door.find(store, query) for query in QUERIES] == [nearest(rt, query, TEXTS) for query in QUERIES]


def find_again(door: Door, again: Callable[[], Any]) -> None:
    store = again()
    door.find(store, "kitten")


@each(langchain, qdrant)  # they keep no model
def test_a_store_refuses_another_model(door, place, other):
    again = door.keep(str(place))
    exchange(place, other)
    with pytest.raises(Exception) as caught:  # noqa: PT011 (each library has its own)
        find_again(door, again)
    assert "the stored vectors are of the model" in f"{caught.value} {caught.value.__cause__}"


@each(langchain)
def test_a_runtime_without_the_adapter_is_refused(door, rt):
    for give in door.give:
        with pytest.raises(door.kind, match=door.said):
            give(rt)
