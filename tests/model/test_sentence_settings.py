"""config_sentence_transformers.json; what cannot be obeyed is in test_sentence_transformers.py."""

from __future__ import annotations

import json

import pytest

from fastflow.model.sentence_settings import SETTINGS, SIMILARITIES, read_settings
from fastflow.stages import similarity


def test_a_directory_without_the_file(tmp_path):
    assert read_settings(tmp_path, 4) == {}


@pytest.mark.parametrize(("name", "ours"), SIMILARITIES.items())
def test_similarities_are_known_by_their_functions(tmp_path, name, ours):
    (tmp_path / SETTINGS).write_text(json.dumps({"similarity_fn_name": name}))
    assert read_settings(tmp_path, 4)["similarity"] == ours
    assert ours in similarity.SIMILARITIES


def test_prompts_that_are_null_are_left_out(tmp_path):
    (tmp_path / SETTINGS).write_text(json.dumps({"prompts": {"a": "x", "b": None}, "truncate_dim": 4}))
    found = read_settings(tmp_path, 4)
    assert (found["prompts"], found["default_prompt"], found["truncate_dim"]) == ({"a": "x"}, None, 4)
