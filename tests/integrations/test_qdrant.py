"""Qdrant with points of ours, and with a Runtime alone."""

import numpy as np
import pytest

import fastflow

from support.doors import TEXTS, examples_run, nearest, unit

pytestmark = pytest.mark.doors


@pytest.fixture
def client():
    from qdrant_client import QdrantClient

    return QdrantClient(":memory:")


def test_the_example_runs():
    examples_run("qdrant")


def test_points_have_the_models_vectors_and_the_texts(client, prompted):
    from fastflow.integrations.qdrant import points, vector_params

    runtime = fastflow.Runtime(prompted)
    client.create_collection("texts", vectors_config=vector_params(runtime))
    client.upload_points("texts", points(runtime, iter(TEXTS), start=10))
    found = client.retrieve("texts", range(10, 14), with_vectors=True)
    assert [(each.id, each.payload) for each in found] == [(i, {"text": t}) for i, t in enumerate(TEXTS, 10)]
    assert np.allclose([each.vector for each in found], unit(runtime.encode_document(TEXTS)), atol=1e-6)


def test_a_collection_finds_what_the_model_finds(client, rt):
    from fastflow.integrations.qdrant import points, vector_params

    client.create_collection("texts", vectors_config=vector_params(rt))
    client.upload_points("texts", points(rt, TEXTS))
    for query in ("kitten", "stock exchange", "central bank"):
        [found] = client.query_points("texts", query=rt.encode_query(query), limit=1).points
        assert found.id == nearest(rt, query, TEXTS)


def test_texts_are_read_as_they_come(rt, monkeypatch):
    from fastflow.integrations import qdrant

    monkeypatch.setattr(qdrant, "WINDOW", 2)
    read = []
    found = qdrant.points(rt, (read.append(text) or text for text in TEXTS))
    next(found)
    assert read == TEXTS[:2]
    assert [each.id for each in found] == [1, 2, 3]


def test_the_distance_is_the_models(dotted, bert, tmp_path):
    from fastflow.integrations.qdrant import vector_params

    from support.sentence_dirs import make_directory, pooling

    assert vector_params(fastflow.Runtime(dotted)).distance == "Dot"
    for name, distance in (("euclidean", "Euclid"), ("manhattan", "Manhattan"), ("cosine", "Cosine")):
        path = make_directory(tmp_path / name, bert, [pooling("mean")], similarity_fn_name=name)
        assert vector_params(fastflow.Runtime(path)).distance == distance


def test_a_runtime_alone_is_refused(client, rt):
    from qdrant_client.models import Document

    from fastflow.integrations.qdrant import vector_params

    client.create_collection("texts", vectors_config=vector_params(rt))
    with pytest.raises(ValueError, match="Unsupported query type"):
        client.query_points("texts", query=rt)
    with pytest.raises(ValueError, match="Input should be a valid string"):
        Document(text="a dog", model=rt)
