"""LlamaIndex with a BaseEmbedding of ours, and with a Runtime alone."""

import asyncio
import pickle

import numpy as np
import pytest

import fastflow

from support.doors import TEXTS, examples_run, exchange, nearest, unit

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def embedding():
    from fastflow.integrations.llama_index import FastflowEmbedding

    return FastflowEmbedding


def test_the_example_runs():
    examples_run("llama_index")


def test_its_vectors_are_the_models(embedding, prompted):
    made, runtime = embedding(prompted), fastflow.Runtime(prompted)
    documents, query = unit(runtime.encode_document(TEXTS)), unit(runtime.encode_query(TEXTS[0]))
    assert np.allclose(made.get_text_embedding_batch(TEXTS), documents, atol=1e-6)
    assert np.allclose(made.get_text_embedding(TEXTS[0]), documents[0], atol=1e-6)
    assert np.allclose(made.get_query_embedding(TEXTS[0]), query, atol=1e-6)
    assert asyncio.run(made.aget_text_embedding_batch(TEXTS)) == made.get_text_embedding_batch(TEXTS)
    assert asyncio.run(made.aget_text_embedding(TEXTS[0])) == made.get_text_embedding(TEXTS[0])
    assert asyncio.run(made.aget_query_embedding(TEXTS[0])) == made.get_query_embedding(TEXTS[0])
    for again in (pickle.loads(pickle.dumps(made)), embedding.from_json(made.to_json())):
        assert again.get_query_embedding(TEXTS[0]) == made.get_query_embedding(TEXTS[0])


def test_a_pickle_refuses_another_model(embedding, place, other):
    words = pickle.dumps(embedding(place))
    exchange(place, other)
    with pytest.raises(fastflow.FastflowError, match="the stored vectors are of the model"):
        pickle.loads(words)


def test_an_index_finds_what_the_model_finds(embedding, rt):
    from llama_index.core import Document, VectorStoreIndex

    index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=embedding(rt))
    for query in ("kitten", "stock exchange", "central bank"):
        [found] = index.as_retriever(similarity_top_k=1).retrieve(query)
        assert found.text == TEXTS[nearest(rt, query, TEXTS)]


def test_a_cache_does_not_mix_two_models(embedding, prompted, other):
    from llama_index.core.ingestion import IngestionPipeline
    from llama_index.core.ingestion.pipeline import get_transformation_hash
    from llama_index.core.schema import TextNode

    nodes = [TextNode(text=text, id_=text) for text in TEXTS]
    hashes = {get_transformation_hash(nodes, embedding(model)) for model in (prompted, str(prompted), other)}
    assert len(hashes) == 2
    found = IngestionPipeline(transformations=[embedding(prompted)]).run(nodes=nodes)
    assert np.allclose(found[0].embedding, embedding(prompted).get_text_embedding(TEXTS[0]))


def test_fields_of_the_library_are_kept(embedding, rt):
    made = embedding(rt, embed_batch_size=7)
    assert made.embed_batch_size == 7
    assert made.model_name == f"fastflow {rt.fingerprint}"
    assert made.class_name() == "FastflowEmbedding"


def test_a_runtime_alone_is_refused(rt):
    from llama_index.core import Document, Settings, VectorStoreIndex

    with pytest.raises(AssertionError):
        VectorStoreIndex.from_documents([Document(text="a dog")], embed_model=rt)
    with pytest.raises(AssertionError):
        Settings.embed_model = rt
