"""LangChain with Embeddings of ours; tests/test_familiar.py has a Runtime without an adapter."""

import asyncio

import numpy as np
import pytest

import fastflow

from support.doors import TEXTS, examples_run, nearest, unit

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def embeddings():
    from fastflow.integrations.langchain import FastflowEmbeddings

    return FastflowEmbeddings


def test_the_example_runs():
    examples_run("langchain")


def test_its_vectors_are_the_models(embeddings, prompted):
    from langchain_core.embeddings import Embeddings

    made, runtime = embeddings(prompted), fastflow.Runtime(prompted)
    assert isinstance(made, Embeddings)
    found, query = made.embed_documents(TEXTS), made.embed_query(TEXTS[0])
    assert isinstance(found, list)
    assert isinstance(found[0][0], float)
    assert np.allclose(found, unit(runtime.encode_document(TEXTS)), atol=1e-6)
    assert np.allclose(query, unit(runtime.encode_query(TEXTS[0])), atol=1e-6)
    assert asyncio.run(made.aembed_documents(TEXTS)) == found
    assert asyncio.run(made.aembed_query(TEXTS[0])) == query
    assert made.embed_documents([]) == []


def test_a_store_finds_what_the_model_finds(embeddings, rt):
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore.from_texts(TEXTS, embeddings(rt))
    for query in ("kitten", "stock exchange", "central bank", "a running puppy"):
        assert store.similarity_search(query, k=1)[0].page_content == TEXTS[nearest(rt, query, TEXTS)]
    documents = store.as_retriever(search_kwargs={"k": 1}).invoke("kitten")
    assert [each.page_content for each in documents] == [TEXTS[1]]
