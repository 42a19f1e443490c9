"""Directories of Sentence Transformers on the triton backend: what it runs, and what it refuses by name."""

from __future__ import annotations

import pytest

import fastflow
from fastflow.errors import UsageError

from support.builders import VOCABULARY, make_sentences
from support.gpu_standin import assert_same, on_standin
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling
from support.triton_processes import NEEDS

pytestmark = NEEDS
TEXTS = make_sentences(70)
WEIGHTS = {"vocab": VOCABULARY, "weights": {"the": 0.25}, "other": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        [pooling("mean")],
        [pooling("cls"), NORMALIZE],
        [("WordWeights", WEIGHTS), pooling("mean"), dense(9, "GELU"), NORMALIZE],
        [pooling("mean"), dense(40, "Identity")],
        [("WeightedLayerPooling", {"weights": [1.0, 2.0]}), pooling("mean")],
    ],
)
def test_modules_it_runs(standin, tmp_path, bert, modules):
    path = make_directory(tmp_path / "m", bert, modules, prompts={"query": "the old "})
    ours, exact = on_standin(path), fastflow.Runtime(path, backend="reference")
    for texts in (TEXTS[:1], TEXTS[:3], TEXTS):
        assert_same(ours.encode(texts), exact.encode(texts))
        assert_same(ours.encode_query(texts), exact.encode_query(texts))
        assert_same(ours.pool(texts), exact.pool(texts))
    one = {"truncate_dim": 5, "normalize_embeddings": True}
    assert_same(ours.encode(TEXTS, **one), exact.encode(TEXTS, **one))


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([pooling("max")], "the triton backend does not pool by the maximum of layer 3; use cpu or torch"),
        ([pooling("mean", "cls")], r"does not pool by the \[CLS\] state and masked mean of layer 3"),
        ([pooling("mean", include_prompt=False)], "masked mean of layer 3 without the tokens of a prompt"),
        (
            [("WeightedLayerPooling", {"weights": [1.0, 3.0]}), pooling("cls")],
            r"state of layers 2 \(0.25\) and 3 \(0.75\)",
        ),
        ([("WordWeights", WEIGHTS | {"other": 0}), pooling("mean")], "layer 3 with token weights of 0"),
    ],
)
def test_poolings_it_refuses(standin, tmp_path, bert, modules, message):
    path = make_directory(tmp_path / "m", bert, modules)
    with pytest.raises(UsageError, match=message):
        on_standin(path)
