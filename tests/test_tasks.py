"""The calls that go by a model's stored settings; prompts with their vectors: across/test_sentence_transformers.py."""

from __future__ import annotations

import numpy as np
import pytest

import fastflow

from support.sentence_dirs import NORMALIZE, make_directory, pooling, theirs
from support.tolerances import EMBEDDING

TEXTS = ["the dog sings.", "a cat", "the river turns"]


@pytest.mark.parametrize("name", ["cosine", "dot", "dot_product", "euclidean", "manhattan", None])
def test_similarity_is_the_models(tmp_path, bert, name):
    settings = {} if name is None else {"similarity_fn_name": name}
    rt = fastflow.Runtime(make_directory(tmp_path / "m", bert, [pooling("mean")], **settings))
    z = rt.encode(TEXTS).astype(np.float64)
    u = z / np.linalg.norm(z, axis=1, keepdims=True)
    differences = z[:, None] - z
    wanted = {
        "dot": z @ z.T, "dot_product": z @ z.T, "euclidean": -np.sqrt((differences**2).sum(-1)),
        "manhattan": -np.abs(differences).sum(-1),
    }.get(name, u @ u.T)  # fmt: skip
    found = rt.similarity(TEXTS, rt.encode(TEXTS))
    assert np.abs(found - wanted).max() <= EMBEDDING * max(1, np.abs(wanted).max())
    if name not in (None, "dot_product"):
        pytest.importorskip("sentence_transformers", exc_type=ImportError)
        model = theirs(tmp_path / "m")
        their = model.similarity(model.encode(TEXTS), model.encode(TEXTS)).numpy()
        assert np.abs(found - their).max() <= 10 * EMBEDDING * max(1, np.abs(wanted).max())


def test_a_model_of_ours_takes_queries_and_documents(model):
    rt = fastflow.Runtime(model)
    np.testing.assert_array_equal(rt.encode_query(TEXTS), rt.encode(TEXTS))
    np.testing.assert_array_equal(rt.encode_document(TEXTS[0], prompt="the "), rt.encode("the " + TEXTS[0]))
    np.testing.assert_array_equal(
        rt.encode_query(TEXTS, normalize_embeddings=True), rt.encode(TEXTS, normalize_embeddings=True)
    )


def test_options_of_encode_go_through(tmp_path, bert):
    rt = fastflow.Runtime(make_directory(tmp_path / "m", bert, [pooling("mean"), NORMALIZE]))
    assert rt.encode_query(TEXTS, truncate_dim=3).shape == (3, 3)
    assert isinstance(rt.encode_document(TEXTS, convert_to_numpy=False), list)
