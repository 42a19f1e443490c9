"""The names that callers of other libraries type: what answers them, and what is refused in one sentence.

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

from support.tolerances import EMBEDDING

TEXTS = [
    "The dog runs across the field.", "A cat sleeps on the sofa.", "Two dogs play with a ball.", "The kitten drinks.",
    "Shares fell sharply on Tuesday.", "The bank raised its rates.", "Investors sold bonds.", "The market recovered.",
] * 3  # fmt: skip


@pytest.fixture(scope="module")
def rt(model):
    return fastflow.Runtime(model, "cpu")


@pytest.fixture(scope="module")
def default():
    return fastflow.Runtime()


def test_a_runtime_answers_by_the_names_of_sentence_transformers(rt, bert, tmp_path):
    assert (rt.dim, rt.get_sentence_embedding_dimension(), rt.get_embedding_dimension()) == (32, 32, 32)
    assert (rt.max_length, rt.max_seq_length, rt.get_max_seq_length()) == (64, 64, 64)
    assert (rt.device, rt.dtype, rt.prompts) == ("cpu", rt.info()["dtype"], {})
    assert rt.tokenizer(["the dog", "a"]).offsets.tolist()[0] == 0
    with pytest.raises(fastflow.UsageError, match="max_seq_length is the model's, 64: fit the model with another"):
        rt.max_seq_length = 128
    st = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    from support.sentence_dirs import make_directory, pooling

    directory = make_directory(tmp_path / "m", bert, [pooling("mean")], prompts={"query": "q: "})
    ours, theirs = fastflow.Runtime(directory, dtype="float32"), st.SentenceTransformer(str(directory), device="cpu")
    for name in ("get_embedding_dimension", "get_max_seq_length"):
        assert getattr(ours, name)() == getattr(theirs, name)()
    assert (ours.max_seq_length, ours.device) == (theirs.max_seq_length, str(theirs.device))
    assert ours.prompts == theirs.prompts
    found = ours.similarity_pairwise(TEXTS[:2], TEXTS[1::-1])
    wanted = theirs.similarity_pairwise(theirs.encode(TEXTS[:2]), theirs.encode(TEXTS[1::-1])).numpy()
    assert np.abs(found - wanted).max() <= 10 * EMBEDDING


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"convert_to_tensor": True}, "convert_to_tensor=True: encode gives NumPy arrays: leave it out, and use torch"),
        ({"device": "cuda"}, r"device='cuda': a Runtime stays on its device: give it to Runtime\(model, device="),
        ({"output_value": "token_embeddings"}, "output_value='token_embeddings': encode gives embeddings of whole"),
        ({"pool": object()}, "a Runtime computes with threads"),
        ({"normalize": True}, "the option is called normalize_embeddings"),
        ({"dtype": "int8"}, r"give it to Runtime\(model, dtype=...\); the numbers of the result are the option p"),
        ({"batchsize": 3}, "encode has no option 'batchsize'; docs/api.md lists"),
    ],
)
def test_options_that_encode_lacks_are_one_sentence(rt, options, message):
    nothing = {"convert_to_tensor": False, "device": "cpu", "output_value": "sentence_embedding", "pool": None}
    for call in (rt.encode, rt.encode_query, rt.encode_document):
        with pytest.raises(fastflow.UsageError, match=message):
            call(["the dog"], **options)
        assert np.array_equal(call(["the dog"], **nothing), rt.encode(["the dog"]))


def test_a_repr_says_what_it_is(rt, model, tmp_path, vector_model, default):
    assert repr(rt) == (
        f"<Runtime: {model}, calibration flow(2x2, width 8, additive, reversal), 32 dimensions, cpu {rt.dtype}>"
    )
    assert repr(default).startswith("<Runtime: default, calibration flow(")
    closed = fastflow.Runtime(vector_model)
    closed.close()
    assert repr(closed) == f"<Runtime: {vector_model}, closed>"
    np.save(tmp_path / "v.npy", np.eye(3, dtype=np.float32))
    with fastflow.Index(tmp_path / "v.npy") as index:
        assert repr(index) == f"<Index: {tmp_path / 'v.npy'}, 3 rows of 3 dimensions, float32, ranked by cosine>"
        [hit] = index.search(np.eye(3)[1], k=1)
    assert repr(hit) == "Hit(row=1, score=1.0000)"
    assert repr(fastflow.Hit(2, 0.5, "word " * 90, 7, {"url": "x"})).endswith("[...]', id=7, fields={'url': 'x'})")


@pytest.mark.parametrize("name", BASES)
def test_it_is_an_embedder_of_a_library_that_is_imported(default, monkeypatch, name):
    for each in BASES:
        monkeypatch.delitem(sys.modules, each, raising=False)
    assert default.__class__ is type(default) is fastflow.Runtime
    module = ModuleType(name)
    module.BaseEmbedder = type("BaseEmbedder", (), {})
    monkeypatch.setitem(sys.modules, name, module)
    assert isinstance(default, module.BaseEmbedder)
    assert isinstance(default, fastflow.Runtime)
    assert type(default) is type(pickle.loads(pickle.dumps(default))) is type(copy.copy(default)) is fastflow.Runtime
    assert default.__class__ is default.__class__


def test_the_calls_of_those_libraries_are_ours(default):
    assert np.array_equal(default.embed(np.array(TEXTS)), default.encode(TEXTS))
    assert np.array_equal(default.embed_words(["dog", "bank"]), default.encode(["dog", "bank"]))
    assert np.array_equal(default.embed_documents(iter(TEXTS)), default.encode_document(TEXTS))
    assert np.array_equal(default.embed_query(TEXTS[0]), default.encode_query(TEXTS[0]))


@pytest.fixture
def no_other_model(monkeypatch):
    """Sentence Transformers refuses to open anything: the model of its own that a library would take instead."""
    import sentence_transformers

    def refuse(*_, **__):
        raise AssertionError("the library loads a model of its own")

    monkeypatch.setattr(sentence_transformers.SentenceTransformer, "__init__", refuse)


@pytest.mark.doors
def test_keybert_takes_it(default, no_other_model):
    from keybert import KeyBERT
    from sklearn.feature_extraction.text import CountVectorizer

    document = "Supervised learning is the task of learning a function that maps an input to an output."
    words = CountVectorizer(stop_words="english").fit([document]).get_feature_names_out()
    cosines = default.similarity([document], list(words))[0]
    found = KeyBERT(model=default).extract_keywords(document, top_n=3)
    assert [word for word, _ in found] == [words[i] for i in np.argsort(-cosines)[:3]]
    assert [score for _, score in found] == pytest.approx(np.sort(cosines)[::-1][:3], abs=1e-3)


@pytest.mark.doors
def test_bertopic_takes_it(default, no_other_model):
    from bertopic import BERTopic
    from bertopic.backend import BaseEmbedder
    from bertopic.backend._utils import select_backend
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    for language in (None, "english", "multilingual"):
        assert select_backend(default, language) is default

    def topics(vectors=None):
        parts = {"umap_model": PCA(4), "hdbscan_model": KMeans(2, random_state=0, n_init=1)}
        return BERTopic(embedding_model=default, **parts).fit_transform(TEXTS, vectors)[0]

    assert isinstance(default, BaseEmbedder)
    assert topics() == topics(default.encode_document(TEXTS))
    assert len(set(topics())) == 2


@pytest.mark.doors
def test_langchain_takes_it(default):
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore(default)
    store.add_texts(TEXTS[:8])
    [(found, score)] = store.similarity_search_with_score("stock exchange", k=1)
    cosines = default.similarity([*default.encode_query(["stock exchange"])], default.encode_document(TEXTS[:8]))[0]
    assert found.page_content == TEXTS[int(cosines.argmax())]
    assert score == pytest.approx(cosines.max(), abs=1e-5)
