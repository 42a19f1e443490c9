"""The names that callers of Sentence Transformers type: what answers them, and what is refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

import fastflow

from support.tolerances import EMBEDDING


@pytest.fixture(scope="module")
def rt(model):
    return fastflow.Runtime(model, "cpu")


def test_a_runtime_answers_by_the_names_of_sentence_transformers(rt):
    assert (rt.dim, rt.get_sentence_embedding_dimension(), rt.get_embedding_dimension()) == (32, 32, 32)
    assert (rt.max_length, rt.max_seq_length, rt.get_max_seq_length()) == (64, 64, 64)
    assert (rt.device, rt.dtype, rt.prompts) == ("cpu", rt.info()["dtype"], {})
    assert rt.tokenizer(["the dog", "a"]).offsets.tolist()[0] == 0
    with pytest.raises(fastflow.UsageError, match="max_seq_length is the model's, 64: fit the model with another"):
        rt.max_seq_length = 128


def test_the_same_names_of_sentence_transformers_give_the_same(bert, tmp_path):
    st = pytest.importorskip("sentence_transformers", exc_type=ImportError)
    from support.sentence_dirs import make_directory, pooling

    directory = make_directory(tmp_path / "m", bert, [pooling("mean")], prompts={"query": "q: "})
    ours, theirs = fastflow.Runtime(directory, dtype="float32"), st.SentenceTransformer(str(directory), device="cpu")
    for name in ("get_embedding_dimension", "get_max_seq_length"):
        assert getattr(ours, name)() == getattr(theirs, name)()
    assert (ours.max_seq_length, ours.device) == (theirs.max_seq_length, str(theirs.device))
    assert ours.prompts == theirs.prompts
    texts = ["the dog sings", "a cat"]
    found = ours.similarity_pairwise(texts, texts[::-1])
    wanted = theirs.similarity_pairwise(theirs.encode(texts), theirs.encode(texts[::-1])).numpy()
    assert np.abs(found - wanted).max() <= 10 * EMBEDDING


def test_a_model_without_an_encoder_has_no_length(vector_model):
    rt = fastflow.Runtime(vector_model)
    for name in ("max_length", "max_seq_length", "tokenizer"):
        with pytest.raises(fastflow.UsageError, match="calibrates vectors and has no encoder"):
            getattr(rt, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"convert_to_tensor": True}, "convert_to_tensor=True: encode gives NumPy arrays: leave it out, and use torch"),
        ({"device": "cuda"}, r"device='cuda': a Runtime stays on its device: give it to Runtime\(model, device="),
        (
            {"output_value": "token_embeddings"},
            "output_value='token_embeddings': encode gives embeddings of whole",
        ),
        ({"pool": object()}, "a Runtime computes with threads"),
        ({"normalize": True}, "the option is called normalize_embeddings"),
        (
            {"dtype": "int8"},
            r"give it to Runtime\(model, dtype=...\); the numbers of the result are the option p",
        ),
        ({"batchsize": 3}, "encode has no option 'batchsize'; docs/api.md lists"),
    ],
)
def test_options_that_encode_lacks_are_one_sentence(rt, options, message):
    for call in (rt.encode, rt.encode_query, rt.encode_document):
        with pytest.raises(fastflow.UsageError, match=message):
            call(["the dog"], **options)


def test_options_that_ask_for_nothing_are_taken(rt):
    nothing = {"convert_to_tensor": False, "device": "cpu", "output_value": "sentence_embedding", "pool": None}
    assert np.array_equal(rt.encode(["the dog"], **nothing), rt.encode(["the dog"]))


def test_similarity_pairwise_is_the_diagonal_of_similarity(rt, sentences):
    a, b = rt.encode(sentences[:9]), rt.encode(sentences[9:18])
    found = rt.similarity_pairwise(sentences[:9], b)
    assert found.shape == (9,)
    assert np.abs(found - np.diag(rt.similarity(a, b))).max() <= EMBEDDING
    with pytest.raises(fastflow.FastflowError, match="takes as many rows on both sides, not 9 and 8"):
        rt.similarity_pairwise(a, b[:8])


def test_no_cosine_leaves_its_range(rt):
    z = np.random.default_rng(0).normal(size=(400, 32)).astype(np.float32)
    assert np.abs(rt.similarity(z, z)).max() <= 1
    assert np.abs(rt.similarity_pairwise(z, 3 * z)).max() <= 1


def test_a_repr_says_what_it_is(rt, model, tmp_path, vector_model):
    assert repr(rt) == (
        f"<Runtime: {model}, calibration flow(2x2, width 8, additive, reversal), 32 dimensions, cpu {rt.dtype}>"
    )
    assert repr(fastflow.Runtime()).startswith("<Runtime: default, calibration flow(")
    closed = fastflow.Runtime(vector_model)
    closed.close()
    assert repr(closed) == f"<Runtime: {vector_model}, closed>"
    np.save(tmp_path / "v.npy", np.eye(3, dtype=np.float32))
    with fastflow.Index(tmp_path / "v.npy") as index:
        assert repr(index) == f"<Index: {tmp_path / 'v.npy'}, 3 rows of 3 dimensions, float32, ranked by cosine>"
        [hit] = index.search(np.eye(3)[1], k=1)
    assert repr(hit) == "Hit(row=1, score=1.0000)"
    assert repr(fastflow.Hit(2, 0.5, "word " * 90, 7, {"url": "x"})).endswith("[...]', id=7, fields={'url': 'x'})")
