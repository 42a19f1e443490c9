"""WordWeights and WeightedLayerPooling: settings that cannot be obeyed are refused by file and field."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.sentence_tokens import read_word_weights

from support.builders import VOCABULARY
from support.sentence_dirs import make_directory, pooling

WEIGHTS = ("WordWeights", {"vocab": VOCABULARY, "weights": {"the": 0.25, "dog": 3}, "other": 1.5})
LAYERS = ("WeightedLayerPooling", {"weights": [0.5, 0.0, 2.0]})


@pytest.fixture
def saved(tmp_path, bert):
    return make_directory(tmp_path / "m", bert, [LAYERS, WEIGHTS, pooling("mean")])


def edit(path, **changes):
    found = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in found.items() if value != "gone"}))


def test_they_become_the_pooling(saved):
    found = load_model(saved).pooling
    assert (found.mode, found.layers, found.shares) == ("mean", (1, 3), (0.2, 0.8))
    ids = {word: i for i, word in enumerate(VOCABULARY)}
    assert (found.weights[ids["the"]], found.weights[ids["dog"]], found.weights[ids["cat"]]) == (0.25, 3, 1.5)
    assert found.describe() == "weighted masked mean of layers 1 and 3"
    assert load_model(saved).modules.names() == [
        "WeightedLayerPooling (layers 1 to 3)",
        "WordWeights",
        "Pooling (mean)",
    ]


def test_a_word_is_sought_in_lower_case_too(tmp_path):
    where = tmp_path / "config.json"
    where.write_text(json.dumps({"vocab": ["The", "the", "x", "more"], "word_weights": {"the": 2}}))
    np.testing.assert_array_equal(read_word_weights(tmp_path, 3), np.float32([2, 2, 1]))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("2_WordWeights", {"vocab": "the"}, "field vocab: must be a list of texts"),
        ("2_WordWeights", {"vocab": VOCABULARY[:-1]}, "words, and the encoder's vocabulary has"),
        ("2_WordWeights", {"word_weights": ["the"]}, "field word_weights: must be an object of numbers"),
        ("2_WordWeights", {"word_weights": {"the": -1}}, "the weight of 'the' must be 0, or 1e-09 to 1e+30, not -1"),
        ("2_WordWeights", {"word_weights": {"the": 1e-12}}, "the weight of 'the' must be 0, or 1e-09"),
        ("2_WordWeights", {"word_weights": {"the": float("nan")}}, "the weight of 'the' must be 0, or 1e-09"),
        ("2_WordWeights", {"word_weights": {"the": True}}, "the weight of 'the' must be 0, or 1e-09"),
        ("2_WordWeights", {"unknown_word_weight": "1"}, "the weight of 'unknown_word_weight' must be 0"),
        ("2_WordWeights", {"odd": 1}, "field 'odd': is unknown"),
        ("1_WeightedLayerPooling", {"word_embedding_dimension": 8}, "word_embedding_dimension: must be 32"),
        ("1_WeightedLayerPooling", {"num_hidden_layers": 12}, "field num_hidden_layers: must be 3, the encoder's"),
        ("1_WeightedLayerPooling", {"num_hidden_layers": "gone"}, "field num_hidden_layers: must be 3, the encoder's"),
        ("1_WeightedLayerPooling", {"layer_start": 4}, "field layer_start: must be 0 to 3, not 4"),
        ("1_WeightedLayerPooling", {"layer_start": "gone"}, "field layer_start: must be 0 to 3, not 4"),
        ("1_WeightedLayerPooling", {"layer_start": 2}, "tensor layer_weights is float32 of shape (3,)"),
        ("", {"output_hidden_states": False}, "output_hidden_states: must be true, or Sentence Transformers passes"),
    ],
)
def test_what_cannot_be_obeyed(saved, file, changes, message):
    edit(saved / file / "config.json", **changes)
    with pytest.raises(FastflowError) as caught:
        load_model(saved)
    assert message in str(caught.value)
    assert str(saved) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_layers_that_sum_to_nothing(tmp_path, bert):
    path = make_directory(tmp_path / "m", bert, [("WeightedLayerPooling", {"weights": [1.0, -1.0]}), pooling("mean")])
    with pytest.raises(FastflowError, match="the sum of layer_weights is 0"):
        load_model(path)


def test_a_maximum_over_several_layers(tmp_path, bert):
    path = make_directory(tmp_path / "m", bert, [LAYERS, pooling("mean", "max")])
    with pytest.raises(FastflowError, match="WeightedLayerPooling over several layers and the pooling mode max cannot"):
        load_model(path)


@pytest.mark.parametrize(
    "modules",
    [
        [WEIGHTS, LAYERS, pooling("mean")],  # the weights would be lost, and their sum kept
        [pooling("mean"), WEIGHTS],
        [LAYERS, LAYERS, pooling("mean")],
        [WEIGHTS],
    ],
)
def test_places_that_cannot_run(tmp_path, bert, modules):
    path = make_directory(tmp_path / "m", bert, modules)
    with pytest.raises(FastflowError, match=r"modules\.json: (must begin with|holds \d modules of the type)"):
        load_model(path)
