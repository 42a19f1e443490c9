"""Haystack with components of ours, and with a Runtime alone."""

import os

import numpy as np
import pytest

import fastflow

from support.doors import TEXTS, examples_run, exchange, nearest, unit

pytestmark = pytest.mark.doors
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before the library is imported


@pytest.fixture(scope="module")
def ours():
    from fastflow.integrations import haystack

    return haystack


def test_the_example_runs():
    examples_run("haystack")


def test_its_vectors_are_the_models(ours, prompted):
    from haystack import Document

    runtime, documents = fastflow.Runtime(prompted), [Document(content=t, meta={"n": i}) for i, t in enumerate(TEXTS)]
    found = ours.FastflowDocumentEmbedder(prompted).run(documents=documents)["documents"]
    assert np.allclose([each.embedding for each in found], unit(runtime.encode_document(TEXTS)), atol=1e-6)
    assert [(each.id, each.content, each.meta) for each in found] == [(d.id, d.content, d.meta) for d in documents]
    assert all(each.embedding is None for each in documents)
    query = ours.FastflowTextEmbedder(prompted).run(text=TEXTS[0])["embedding"]
    assert np.allclose(query, unit(runtime.encode_query(TEXTS[0])), atol=1e-6)
    assert ours.FastflowDocumentEmbedder(prompted).run(documents=[]) == {"documents": []}


def test_a_pipeline_finds_what_the_model_finds_once_it_is_saved(ours, rt):
    from haystack import Document, Pipeline
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.components.writers import DocumentWriter
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore()  # compares by dot products
    index = Pipeline()
    index.add_component("embed", ours.FastflowDocumentEmbedder(rt))
    index.add_component("write", DocumentWriter(store))
    index.connect("embed", "write")
    index.run({"embed": {"documents": [Document(content=text) for text in TEXTS]}})
    search = Pipeline()
    search.add_component("embed", ours.FastflowTextEmbedder())
    search.add_component("find", InMemoryEmbeddingRetriever(store, top_k=1))
    search.connect("embed.embedding", "find.query_embedding")
    for query in ("kitten", "stock exchange", "central bank"):
        [found] = search.run({"embed": {"text": query}})["find"]["documents"]
        assert found.content == TEXTS[nearest(rt, query, TEXTS)]


@pytest.mark.parametrize("name", ["FastflowTextEmbedder", "FastflowDocumentEmbedder"])
def test_a_saved_pipeline_has_the_same_model_and_refuses_another(ours, place, other, name):
    from haystack import Pipeline
    from haystack.core.errors import DeserializationError

    made = Pipeline()
    made.add_component("embed", getattr(ours, name)(str(place)))
    words = made.dumps()
    allowed = {"allowed_modules": ["fastflow.integrations.haystack"]}
    again = Pipeline.loads(words, **allowed).get_component("embed")
    assert again._model.runtime.fingerprint == fastflow.Runtime(place).fingerprint
    exchange(place, other)
    with pytest.raises((fastflow.FastflowError, DeserializationError), match="the stored vectors are of the model"):
        Pipeline.loads(words, **allowed)


def test_what_is_no_text_is_refused(ours, rt):
    from haystack import Document

    with pytest.raises(fastflow.UsageError, match="a query is one text"):
        ours.FastflowTextEmbedder(rt).run(text=TEXTS)
    with pytest.raises(fastflow.FastflowError, match="text 1 "):
        ours.FastflowDocumentEmbedder(rt).run(documents=[Document(content="a"), Document(meta={"n": 1})])


def test_a_runtime_alone_is_refused(rt):
    from haystack import Pipeline
    from haystack.core.errors import PipelineValidationError

    with pytest.raises(PipelineValidationError, match="doesn't seem to be a component"):
        Pipeline().add_component("embed", rt)
