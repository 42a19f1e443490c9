"""The published models of Sentence Transformers at their widths, heads and module lists, with few layers and drawn
weights: against the definitions in float64, and against Sentence Transformers if it is installed.

XLM-R's models have a SentencePiece tokenizer of a small vocabulary; the rest have BERT's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import fastflow

from support.builders import make_sentences
from support.sentence_dirs import apart, expected, least_cosine, theirs
from support.sentence_models import MODELS, make_published_encoder, publish
from support.tolerances import COSINE, UNIT

TEXTS = ["", "a", *make_sentences(6, seed=5)]
LONG = {tokens: " ".join(make_sentences(count, seed=6)) for tokens, count in ((256, 30), (8192, 8))}
DEPTH = {"modernbert": 4}  # a global layer, two local ones and a global one; of other families two layers
# models that differ in depth alone are one model twice here: the second runs with -m whole
DISTINCT = {str(replace(model, layers=0)): name for name, model in reversed(MODELS.items())}.values()
PUBLISHED = [pytest.param(name, marks=[] if name in DISTINCT else pytest.mark.whole) for name in MODELS]


def texts_for(model):
    """TEXTS and a long one: beyond the limit if that is at most 256 tokens, else of several blocks."""
    return [*TEXTS, next(text for tokens, text in LONG.items() if model.length <= tokens)]


@pytest.fixture(scope="module")
def encoder_of(tmp_path_factory):
    """``encoder_of(model)``: its encoder of few layers, made once for all models of its family and shape."""

    @cache
    def get(family, shape):
        alike = next(m for m in MODELS.values() if (m.family, shape_of(m)) == (family, shape))
        return make_published_encoder(tmp_path_factory.mktemp(family), alike, DEPTH.get(family, 2))

    def shape_of(model):
        return tuple(model.shape(DEPTH.get(model.family, 2)).items())

    return lambda model: get(model.family, shape_of(model))


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request, encoder_of, tmp_path_factory):
    """The directory and the facts of one model."""
    model = MODELS[request.param]
    return publish(tmp_path_factory.mktemp(request.param) / "model", model, encoder_of(model)), model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
def test_a_published_model(published):
    path, model = published
    texts = texts_for(model)
    want = expected(path, texts)
    with fastflow.Runtime(path, backend="cpu", dtype="float32") as rt:
        assert rt.dim == model.dim
        assert apart(rt.encode(texts), want) <= UNIT
        for name, prompt in model.prompts.items():
            assert apart(rt.encode(TEXTS[:4], prompt_name=name), expected(path, TEXTS[:4], prompt)) <= UNIT
    for dtype, least in {**COSINE, "int8": 0.99}.items():
        with fastflow.Runtime(path, backend="cpu", dtype=dtype) as rt:
            assert least_cosine(rt.encode(texts), want) >= least, dtype


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:texts longer than")
def test_a_published_model_beside_sentence_transformers(published):
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    path, model = published
    other, rt, texts = theirs(path), fastflow.Runtime(path, backend="cpu", dtype="float32"), texts_for(model)
    for call in ("encode", "encode_query", "encode_document"):
        assert apart(getattr(rt, call)(texts), getattr(other, call)(texts)) <= UNIT, call
