"""Published models of Sentence Transformers, with few layers and random weights, against the definitions in float64.

They are compared with Sentence Transformers too, if it is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fastflow

from support.builders import calm, make_encoder, make_sentences
from support.sentence_dirs import (
    NORMALIZE,
    Module,
    apart,
    dense,
    expected,
    least_cosine,
    make_directory,
    pooling,
    theirs,
)
from support.tolerances import COSINE, UNIT

MEAN, CLS = pooling("mean"), pooling("cls")
QUERY = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True)
class Published:
    """An encoder and its modules; ``wide`` and ``dim``: 0 for 4 ``hidden`` and for ``hidden``."""

    layers: int
    hidden: int
    heads: int
    modules: tuple[Module, ...]
    length: int = 512
    family: str = "bert"
    prompts: Mapping[str, str] = field(default_factory=dict)
    dim: int = 0
    wide: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", self.dim or self.hidden)
        object.__setattr__(self, "wide", self.wide or 4 * self.hidden)

    def shape(self, layers: int | None = None) -> dict[str, Any]:
        depth = layers or self.layers
        if self.family == "distilbert":
            return {"dim": self.hidden, "n_layers": depth, "n_heads": self.heads, "hidden_dim": self.wide,
                    "max_position_embeddings": 512}  # fmt: skip
        places = {"xlm-roberta": 514, "mpnet": 514, "modernbert": 8192}.get(self.family, 512)
        window = {"local_attention": 128} if self.family == "modernbert" else {}
        return {"hidden_size": self.hidden, "num_hidden_layers": depth, "num_attention_heads": self.heads,
                "intermediate_size": self.wide, "max_position_embeddings": places, **window}  # fmt: skip


def make_published_encoder(directory: Path, model: Published, layers: int | None = None) -> Path:
    encoder = make_encoder(directory, model.family, **model.shape(layers))
    calm(encoder, model.hidden)
    return encoder


def publish(directory: Path, model: Published, encoder: Path) -> Path:
    prompts = dict(model.prompts)
    return make_directory(directory, encoder, list(model.modules), length=model.length, prompts=prompts)


MODELS = {
    "all-MiniLM-L6-v2": Published(6, 384, 12, (MEAN, NORMALIZE), 256),
    "all-MiniLM-L12-v2": Published(12, 384, 12, (MEAN, NORMALIZE), 128),
    "bge-small-en-v1.5": Published(12, 384, 12, (CLS, NORMALIZE)),
    "bge-base-en-v1.5": Published(12, 768, 12, (CLS, NORMALIZE)),
    "bge-large-en-v1.5": Published(24, 1024, 16, (CLS, NORMALIZE)),
    "e5-small-v2": Published(12, 384, 12, (MEAN, NORMALIZE)),
    "e5-base-v2": Published(12, 768, 12, (MEAN, NORMALIZE)),
    "multilingual-e5-small": Published(12, 384, 12, (MEAN, NORMALIZE)),  # BERT's layers
    "gte-small": Published(12, 384, 12, (MEAN, NORMALIZE)),
    "gte-base": Published(12, 768, 12, (MEAN, NORMALIZE)),
    "paraphrase-multilingual-MiniLM-L12-v2": Published(12, 384, 12, (MEAN,), 128),
    "distiluse-base-multilingual-cased-v2": Published(
        6, 768, 12, (MEAN, dense(512, "Tanh")), 128, "distilbert", dim=512
    ),
    "mxbai-embed-large-v1": Published(24, 1024, 16, (CLS,), prompts={"query": QUERY, "passage": ""}),
    "snowflake-arctic-embed-s": Published(12, 384, 12, (CLS, NORMALIZE), prompts={"query": QUERY}),
    "snowflake-arctic-embed-m": Published(12, 768, 12, (CLS, NORMALIZE), prompts={"query": QUERY}),
    "all-mpnet-base-v2": Published(12, 768, 12, (MEAN, NORMALIZE), 384, "mpnet"),
    "multilingual-e5-base": Published(12, 768, 12, (MEAN, NORMALIZE), family="xlm-roberta"),
    "gte-modernbert-base": Published(22, 768, 12, (CLS,), 8192, "modernbert", wide=1152),
}

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

    @cache
    def get(family, shape):
        alike = next(m for m in MODELS.values() if (m.family, shape_of(m)) == (family, shape))
        return make_published_encoder(tmp_path_factory.mktemp(family), alike, DEPTH.get(family, 2))

    def shape_of(model):
        return tuple(model.shape(DEPTH.get(model.family, 2)).items())

    return lambda model: get(model.family, shape_of(model))


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request, encoder_of, tmp_path_factory):
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
