"""The configuration of an encoder: what cannot be run is refused by field."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError

TEXTS = ["the dog sleeps near it.", "two", "she sings quietly and the old river turns"]


BACKENDS = ("reference", "torch")


def reconfigure(directory: Path, **settings: object) -> Path:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))
    return directory


def embed(directory: Path, backend: str = "reference") -> np.ndarray:
    return Runtime(directory, backend=backend).encode(TEXTS)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model_type": "gpt2"}, "architecture 'gpt2' is not supported; supported are bert"),
        ({"model_type": ...}, "architecture None is not supported"),
        ({"hidden_act": "silu"}, "activation 'silu' is not supported"),
    ],
)
def test_an_architecture_that_only_pytorch_may_run(bert_copy, setting, message, backend):
    reconfigure(bert_copy, **setting)
    with pytest.raises(FastflowError, match=message):
        embed(bert_copy, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "only absolute position"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers: missing or not a whole number"),
        ({"vocab_size": ...}, "vocab_size"),
        ({"type_vocab_size": None}, "type_vocab_size"),
        ({"num_attention_heads": 5}, "5 heads"),
        ({"num_attention_heads": 0}, "num_attention_heads: must be at least 1"),
    ],
)
def test_a_configuration_that_cannot_be_run(bert_copy, setting, message, backend):
    reconfigure(bert_copy, **setting)
    with pytest.raises(FastflowError, match=message):
        embed(bert_copy, backend)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "7", "\ufeff{", ""])
def test_a_config_that_is_no_json_object(bert_copy, text):
    (bert_copy / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(FastflowError, match=r"config\.json"):
        embed(bert_copy)
