"""A Runtime where other libraries ask for a model of theirs: each gets our vectors, and loads no model of its own.

The tests marked doors run against the libraries themselves: pip install -e '.[doors]', then pytest -m doors.
"""

from __future__ import annotations

import copy
import pickle
import sys
from types import ModuleType

import numpy as np
import pytest

import fastflow
from fastflow.compatibility import BASES

TEXTS = [
    "The dog runs across the field.", "A cat sleeps on the sofa.", "Two dogs play with a ball.", "The kitten drinks.",
    "Shares fell sharply on Tuesday.", "The bank raised its rates.", "Investors sold bonds.", "The market recovered.",
] * 3  # fmt: skip


@pytest.fixture(scope="module")
def rt():
    return fastflow.Runtime()


def test_it_is_a_runtime_alone_without_those_libraries(rt, monkeypatch):
    for name in BASES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert rt.__class__ is type(rt) is fastflow.Runtime


@pytest.mark.parametrize("name", BASES)
def test_it_is_an_embedder_of_a_library_that_is_imported(rt, monkeypatch, name):
    module = ModuleType(name)
    module.BaseEmbedder = type("BaseEmbedder", (), {})
    monkeypatch.setitem(sys.modules, name, module)
    assert isinstance(rt, module.BaseEmbedder)
    assert isinstance(rt, fastflow.Runtime)
    assert type(rt) is type(pickle.loads(pickle.dumps(rt))) is type(copy.copy(rt)) is fastflow.Runtime
    assert rt.__class__ is rt.__class__


def test_the_calls_of_those_libraries_are_ours(rt):
    assert np.array_equal(rt.embed(np.array(TEXTS)), rt.encode(TEXTS))
    assert np.array_equal(rt.embed_words(["dog", "bank"]), rt.encode(["dog", "bank"]))
    assert np.array_equal(rt.embed_documents(iter(TEXTS)), rt.encode_document(TEXTS))
    assert np.array_equal(rt.embed_query(TEXTS[0]), rt.encode_query(TEXTS[0]))


@pytest.fixture
def no_other_model(monkeypatch):
    """Sentence Transformers refuses to open anything: the model of its own that a library would take instead."""
    import sentence_transformers

    def refuse(*_, **__):
        raise AssertionError("the library loads a model of its own")

    monkeypatch.setattr(sentence_transformers.SentenceTransformer, "__init__", refuse)


@pytest.mark.doors
def test_keybert_takes_it(rt, no_other_model):
    from keybert import KeyBERT
    from sklearn.feature_extraction.text import CountVectorizer

    document = "Supervised learning is the task of learning a function that maps an input to an output."
    words = CountVectorizer(stop_words="english").fit([document]).get_feature_names_out()
    cosines = rt.similarity([document], list(words))[0]
    found = KeyBERT(model=rt).extract_keywords(document, top_n=3)
    assert [word for word, _ in found] == [words[i] for i in np.argsort(-cosines)[:3]]
    assert [score for _, score in found] == pytest.approx(np.sort(cosines)[::-1][:3], abs=1e-3)


@pytest.mark.doors
def test_bertopic_takes_it(rt, no_other_model):
    from bertopic import BERTopic
    from bertopic.backend import BaseEmbedder
    from bertopic.backend._utils import select_backend
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    for language in (None, "english", "multilingual"):
        assert select_backend(rt, language) is rt

    def topics(vectors=None):
        parts = {"umap_model": PCA(4), "hdbscan_model": KMeans(2, random_state=0, n_init=1)}
        return BERTopic(embedding_model=rt, **parts).fit_transform(TEXTS, vectors)[0]

    assert isinstance(rt, BaseEmbedder)
    assert topics() == topics(rt.encode_document(TEXTS))
    assert len(set(topics())) == 2


@pytest.mark.doors
def test_langchain_takes_it(rt):
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore(rt)
    store.add_texts(TEXTS[:8])
    [(found, score)] = store.similarity_search_with_score("stock exchange", k=1)
    cosines = rt.similarity([*rt.encode_query(["stock exchange"])], rt.encode_document(TEXTS[:8]))[0]
    assert found.page_content == TEXTS[int(cosines.argmax())]
    assert score == pytest.approx(cosines.max(), abs=1e-5)
