"""Engines that take texts: each that is installed agrees with PyTorch, on a plain encoder and a saved directory."""

from __future__ import annotations

import json

import pytest

from fastflow.bench.peers import encoder as peers_encoder
from fastflow.bench.peers import text_engines
from fastflow.bench.peers.encoder import PEERS, missing
from fastflow.bench.peers.text_engines import open_texts, plain_layers
from fastflow.bench.suites.texts import Check, tokenizer_of
from fastflow.bench.suites.workbench import Workbench

from support.benches import absent
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling

pytestmark = pytest.mark.usefixtures("as_in_a_run")
FAMILIES = ("sentence-transformers", "sentence-transformers-onnx", "sentence-transformers-openvino", "fastembed")
PROMPTS = {"prompts": {"query": "a dog: "}, "default_prompt_name": "query"}


def wanted(family):
    return [(family, dtype) for dtype in PEERS[family][1]]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_installed_engines_agree_with_pytorch(tmp_path, bert, sentences, family):
    if reason := missing(family, "float32"):
        pytest.skip(reason)
    if missing("sentence-transformers", "float32"):
        pytest.skip("a saved directory needs sentence_transformers")
    modules = [pooling("cls", "mean"), dense(8), NORMALIZE]
    saved = make_directory(tmp_path / "st", bert, modules, length=9, **PROMPTS)
    for number, model in enumerate((bert, saved)):
        folder = tmp_path / str(number)
        folder.mkdir()
        subject, skipped = Workbench(folder, str(model)).named(), []
        check = Check(subject, sentences[:20], tokenizer_of(subject))
        found = {one.dtype: check(one) for one in open_texts(subject, wanted(family), 1, skipped)}
        assert skipped == []
        assert set(found) == set(PEERS[family][1])
        assert found["float32"].max_abs_err <= 1e-4


def test_who_is_missing_or_fails_is_named(tmp_path, bert, monkeypatch):
    subject, skipped = Workbench(tmp_path, str(bert)).named(), []
    monkeypatch.setattr(peers_encoder, "find_spec", lambda name: None if name == "fastembed" else object())

    def refuse(*args):
        raise ValueError("not this model\nand more")

    monkeypatch.setattr(text_engines, "sentence_transformers", refuse)
    both = [("sentence-transformers", "bfloat16"), ("fastembed", "int8")]
    assert list(open_texts(subject, both, 1, skipped)) == []
    assert [(entry["name"], entry["reason"]) for entry in skipped] == [
        ("sentence-transformers bfloat16", "it cannot be opened: ValueError: not this model"),
        ("fastembed int8", absent("fastembed")),
    ]


def test_a_plain_folder_is_averaged_over_its_last_layer_and_a_saved_one_as_it_says(tmp_path, bert):
    saved = make_directory(tmp_path / "st", bert, [pooling("cls")])
    for model, layers in ((bert, (3,)), (saved, None)):
        (folder := tmp_path / f"of-{model.name}").mkdir()
        assert plain_layers(Workbench(folder, str(model)).named()) == layers


def test_fastembed_reads_the_length_limit_from_its_folder(tmp_path, bert):
    saved = make_directory(tmp_path / "st", bert, [pooling("cls")], length=9)
    subject, graph = Workbench(tmp_path, str(saved)).named(), tmp_path / "graph.onnx"
    graph.write_bytes(b"graph")
    folder = text_engines._fastembed_folder(subject, graph)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["model_max_length"], settings["max_length"]) == (9, 9)
    assert {path.name for path in folder.iterdir()} >= {"model.onnx", "tokenizer.json", "special_tokens_map.json"}
