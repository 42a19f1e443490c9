"""The published models of Sentence Transformers at their widths, heads and module lists, with few layers and drawn
weights: against the definitions in float64, and against Sentence Transformers where it is installed.

XLM-R's models have a SentencePiece tokenizer of a small vocabulary; the rest have BERT's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import make_sentences
from sentence_dirs import expected, theirs
from sentence_models import MODELS, make_published
from tolerances import COSINE, UNIT

import fastflow

TEXTS = ["", "a", *make_sentences(10, seed=5), " ".join(make_sentences(30, seed=6))]
DEPTH = {"modernbert": 4}  # a global layer, two local ones and a global one; of other families two layers
# models that differ in depth alone are one model twice here: the second runs with -m whole
DISTINCT = {str(replace(model, layers=0)): name for name, model in reversed(MODELS.items())}.values()
PUBLISHED = [pytest.param(name, marks=[] if name in DISTINCT else pytest.mark.whole) for name in MODELS]


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request, tmp_path_factory):
    """The directory and the facts of one model."""
    model = MODELS[request.param]
    return make_published(tmp_path_factory.mktemp(request.param), model, layers=DEPTH.get(model.family, 2)), model


def cosines(found, want):
    return (found * want).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(want, axis=1)


@pytest.mark.filterwarnings("ignore:texts longer than")
def test_a_published_model(published):
    path, model = published
    want = expected(path, TEXTS)
    scale = max(1, np.linalg.norm(want, axis=1).max())
    with fastflow.Runtime(path, backend="cpu", dtype="float32") as rt:
        found = rt.encode(TEXTS)
        assert (rt.dim, found.shape) == (model.dim, want.shape)
        assert np.abs(found - want).max() <= UNIT * scale
        for name, prompt in model.prompts.items():
            prompted = rt.encode(TEXTS[:4], prompt_name=name)
            assert np.abs(prompted - expected(path, TEXTS[:4], prompt)).max() <= UNIT * scale
    for dtype, least in {**COSINE, "int8": 0.99}.items():
        with fastflow.Runtime(path, backend="cpu", dtype=dtype) as rt:
            assert cosines(rt.encode(TEXTS), want).min() >= least, dtype


@pytest.mark.filterwarnings("ignore:texts longer than")
def test_a_published_model_beside_sentence_transformers(published):
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    path, _ = published
    other, rt = theirs(path), fastflow.Runtime(path, backend="cpu", dtype="float32")
    for ours, their in (
        (rt.encode(TEXTS), other.encode(TEXTS)),
        (rt.encode_query(TEXTS), other.encode_query(TEXTS)),
        (rt.encode_document(TEXTS), other.encode_document(TEXTS)),
    ):
        assert np.abs(ours - their).max() <= UNIT * max(1, np.linalg.norm(their, axis=1).max())
