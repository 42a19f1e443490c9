"""Chroma with an embedding function of ours, and with a Runtime alone."""

import numpy as np
import pytest

import fastflow

from support.doors import TEXTS, examples_run, exchange, nearest, unit

pytestmark = pytest.mark.doors
IDS = list("abcd")


@pytest.fixture(scope="module")
def function():
    from fastflow.integrations.chromadb import FastflowEmbeddingFunction

    return FastflowEmbeddingFunction


@pytest.fixture(autouse=True)
def no_other_model(monkeypatch):
    """Chroma's default model refuses to embed."""
    from chromadb.api.types import DefaultEmbeddingFunction

    def refuse(self, input):
        raise AssertionError("Chroma embeds with a model of its own")

    monkeypatch.setattr(DefaultEmbeddingFunction, "__call__", refuse)


def client(folder):
    import chromadb

    return chromadb.PersistentClient(str(folder), settings=chromadb.Settings(anonymized_telemetry=False))


def test_the_example_runs():
    examples_run("chromadb")


def test_its_vectors_are_the_models(function, prompted):
    runtime, made = fastflow.Runtime(prompted), function(prompted)
    assert np.allclose(made(TEXTS), unit(runtime.encode_document(TEXTS)), atol=1e-6)
    assert np.allclose(made.embed_query(TEXTS), unit(runtime.encode_query(TEXTS)), atol=1e-6)
    assert not made.is_legacy()


def test_a_collection_finds_what_the_model_finds_and_keeps_its_model(function, rt, tmp_path):
    client(tmp_path).create_collection("texts", embedding_function=function(rt)).add(ids=IDS, documents=TEXTS)
    for collection in (
        client(tmp_path).get_collection("texts"),
        client(tmp_path).get_collection("texts", embedding_function=function()),
        client(tmp_path).get_or_create_collection("texts", embedding_function=function()),
    ):
        assert collection.configuration["hnsw"]["space"] == "cosine"
        for query in ("kitten", "stock exchange", "central bank"):
            found = collection.query(query_texts=[query], n_results=1)["ids"][0][0]
            assert IDS.index(found) == nearest(rt, query, TEXTS)


def test_a_collection_refuses_another_model(function, place, other, tmp_path):
    client(tmp_path / "db").create_collection("texts", embedding_function=function(str(place)))
    exchange(place, other)
    with pytest.raises((fastflow.FastflowError, ValueError), match="the stored vectors are of the model"):
        client(tmp_path / "db").get_collection("texts").add(ids=["a"], documents=["a dog"])


def test_a_function_for_another_model_is_compared_by_modify_alone(function, prompted, other, tmp_path):
    """Of a function that get_collection is given, Chroma asks nothing but its name."""
    made = client(tmp_path).create_collection("texts", embedding_function=function(str(prompted)))
    with pytest.raises((fastflow.FastflowError, ValueError), match="the stored vectors are of the model"):
        made.modify(configuration={"embedding_function": function(str(other))})
    given = client(tmp_path).get_collection("texts", embedding_function=function(str(other)))
    given.add(ids=["a"], documents=["a dog"])  # the page says so: leave the function out
    with pytest.raises(Exception, match="dimension"):
        client(tmp_path).get_collection("texts", embedding_function=function()).add(ids=["b"], documents=["a dog"])


def test_a_collection_without_the_adapter_is_an_error(function, rt, tmp_path, monkeypatch):
    """A program that did not import it."""
    from chromadb.utils.embedding_functions import known_embedding_functions

    client(tmp_path).create_collection("texts", embedding_function=function(rt))
    monkeypatch.delitem(known_embedding_functions, "fastflow")
    with pytest.raises(ValueError, match="fastflow"):
        client(tmp_path).get_collection("texts").add(ids=["a"], documents=["a dog"])


def test_the_distance_is_the_models(function, dotted, bert, tmp_path):
    from support.sentence_dirs import make_directory, pooling

    made = function(dotted)
    assert (made.default_space(), made.supported_spaces()) == ("ip", ["ip"])
    path = make_directory(tmp_path / "manhattan", bert, [pooling("mean")], similarity_fn_name="manhattan")
    with pytest.raises(fastflow.UsageError, match="Chroma has no manhattan distance"):
        function(path)


def test_a_runtime_alone_is_refused(rt, tmp_path):
    with pytest.raises(ValueError, match=r"Expected EmbeddingFunction\.__call__"):
        client(tmp_path).create_collection("texts", embedding_function=rt)
    with pytest.raises(AttributeError, match="'Runtime' object has no attribute 'name'"):
        client(tmp_path).get_or_create_collection("texts", embedding_function=rt)
