"""Pooling names and what they compute, on layers that are constant and so give themselves away."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow import Runtime
from fastflow.backends.reference import ReferenceBackend
from fastflow.backends.torch import TorchBackend
from fastflow.kernels.encoder import reference
from fastflow.model import Model
from fastflow.model.tokenizer import Tokens
from fastflow.transforms.pooling import WORDS, Pooling, parse_pooling, pooling_name

from support.builders import make_model

# name, depth, layers: the table of what each name really is; 12 is BERT-base, 24 large, 2 the smallest
NAMES = [
    ("last", 12, (12,)),
    ("avg", 12, (12,)),
    ("avg-last-1", 12, (1,)),
    ("avg-last-2", 12, (1, 12)),
    ("last2avg", 12, (1, 12)),
    ("first-last", 12, (1, 12)),
    ("first-last", 24, (1, 24)),
    ("avg-last-2", 24, (1, 24)),
    ("first-last", 1, (1,)),
    ("avg-last-3", 12, (1, 12, 11)),
    ("avg-last-concat-2", 12, (1, 12)),
    ("avg-last-last-1", 12, (12,)),
    ("avg-last-last-2", 12, (11,)),
    ("avg-last-last-12", 12, (1,)),
    ("first-last-avg", 12, (0, 12)),
    ("embedding-first-last", 12, (0, 1, 12)),
    ("embedding-first-last", 1, (0, 1)),
    ("words", 12, (WORDS,)),
    ("words-first-last", 12, (WORDS, 1, 12)),
    ("words-first-last", 1, (WORDS, 1)),
    ("mean-of-layers:words", 12, (WORDS,)),
    ("mean-of-layers:4,words,1,words", 12, (4, WORDS, 1)),
    ("mean-of-layers:4", 12, (4,)),
    ("mean-of-layers:0,3,7,12", 12, (0, 3, 7, 12)),
    ("avg-last-2", 2, (1, 2)),
    ("avg-last-3", 3, (1, 3, 2)),
]


MADE = [
    *((name, depth, Pooling("mean", layers)) for name, depth, layers in NAMES),
    *((name, 12, Pooling(name, (12,))) for name in ("cls", "pooler")),
    ("mean-of-layers:3*words,1,4", 12, Pooling("mean", (WORDS, 1, 4), shares=(0.6, 0.2, 0.2))),
    ("mean-of-layers:1*12,999*0", 12, Pooling("mean", (12, 0), shares=(0.001, 0.999))),
    ("mean-of-layers:2*1,2*4", 12, Pooling("mean", (1, 4))),
    ("mean-of-layers:7*words", 12, Pooling("mean", (WORDS,))),
]


@pytest.mark.parametrize(("name", "depth", "pooling"), MADE)
def test_names_mean_explicit_layers(name, depth, pooling):
    assert parse_pooling(name, depth) == pooling


@settings(deadline=None, derandomize=True, max_examples=100)
@given(items=st.dictionaries(st.integers(WORDS, 12), st.integers(1, 999), min_size=1, max_size=6))
def test_a_pooling_has_the_name_that_asks_for_it(items):
    name = ",".join(f"{count}*{'words' if layer == WORDS else layer}" for layer, count in items.items())
    made = parse_pooling(f"mean-of-layers:{name}", 12)
    assert parse_pooling(pooling_name(made), 12) == made
    assert sum(made.factors) == pytest.approx(1)
    assert made.factors == pytest.approx([count / sum(items.values()) for count in items.values()])


BY_WORDS = "word embeddings without positions"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("first-last", "masked mean of layers 1 and 12"),
        ("embedding-first-last", "masked mean of layers 0, 1 and 12"),
        ("words", f"masked mean of {BY_WORDS}"),
        ("mean-of-layers:4,words", f"masked mean of {BY_WORDS} and of layer 4"),
        ("words-first-last", f"masked mean of {BY_WORDS} and of layers 1 and 12"),
        ("mean-of-layers:1,3*words,12", f"masked mean of {BY_WORDS} (0.6) and of layers 1 (0.2) and 12 (0.2)"),
        ("last", "masked mean of layer 12"),
        ("cls", "[CLS] state of layer 12"),
        ("pooler", "tanh pooler over [CLS] of layer 12"),
    ],
)
def test_descriptions_name_the_layers(name, said):
    assert parse_pooling(name, 12).describe() == said


def backend_with(kind: type, pooling: Pooling, model: Model) -> object:
    return kind(Model(model.path, model.path, pooling, 64), "float32", "cpu", None)


def constant_layers(kind: type, lengths: list[int], dim: int = 32) -> object:
    """Hidden states whose layer i is 10**i everywhere, in the form that backend ``kind`` makes."""
    if kind is ReferenceBackend:
        return {i: np.full((sum(lengths), dim), 10.0**i, np.float32) for i in range(4)}
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return {i: torch.where(mask[:, :, None], 10.0**i, -777.0).expand(-1, -1, dim) for i in range(4)}, mask


@pytest.mark.parametrize("kind", [ReferenceBackend, TorchBackend])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("last", 1000), ("cls", 1000), ("avg-last-1", 10), ("avg-last-last-2", 100), ("first-last", (10 + 1000) / 2),
        ("avg-last-2", (10 + 1000) / 2), ("avg-last-3", (10 + 1000 + 100) / 3), ("first-last-avg", (1 + 1000) / 2),
        ("embedding-first-last", (1 + 10 + 1000) / 3),
        ("mean-of-layers:0,1,2,3", 1111 / 4), ("mean-of-layers:3*0,1,2*3", (3 + 10 + 2000) / 6),
    ],
)  # fmt: skip
def test_backends_average_the_layers_that_the_name_means(bert, kind, name, value):
    lengths = [1, 3, 2, 7]
    tokens = Tokens(np.zeros(sum(lengths), np.int32), np.r_[0, np.cumsum(lengths)], np.empty(0, np.int64))
    backend = backend_with(kind, parse_pooling(name, 3), Model(bert, bert, Pooling("mean", (3,)), 64))
    pooled = backend.pooling(constant_layers(kind, lengths), tokens)
    assert pooled.shape == (4, 32)
    assert np.abs(pooled - value).max() <= 1e-3


@settings(deadline=None, derandomize=True, max_examples=50)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 100))
def test_packed_means_and_first_states(lengths, seed):
    hidden = np.random.default_rng(seed).normal(size=(sum(lengths), 5))
    offsets = np.r_[0, np.cumsum(lengths)]
    parts = np.split(hidden, offsets[1:-1])
    assert np.abs(reference.pool_mean(hidden, offsets) - [part.mean(axis=0) for part in parts]).max() <= 1e-12
    assert np.array_equal(reference.pool_first(hidden, offsets), [part[0] for part in parts])
    for pool in (reference.pool_mean, reference.pool_first):
        assert pool(np.zeros((0, 5)), np.array([0])).shape == (0, 5)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_pooler_is_transformers_pooler(tmp_path, bert, sentences, backend):
    import transformers

    made = make_model(tmp_path / "model", bert, sentences, "none", pooling="pooler")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    with torch.inference_mode():
        batch = tokenizer(sentences[:9], return_tensors="pt", padding=True)
        want = transformers.AutoModel.from_pretrained(bert).eval()(**batch).pooler_output.numpy()
    assert np.abs(Runtime(made, backend=backend).encode(sentences[:9]) - want).max() <= 1e-5
