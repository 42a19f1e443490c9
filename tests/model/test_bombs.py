"""Rules of a tokenizer that make a text grow without end, and those of real tokenizers, which do not."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import DEFAULT
from fastflow.model.bombs import GROWTH, read_tokenizer_file
from fastflow.model.tokens import Tokenizer


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def precompiled(*strings: bytes) -> dict[str, Any]:
    data = (4).to_bytes(4, "little") + bytes(4) + b"".join(string + b"\0" for string in strings)
    return {"type": "Precompiled", "precompiled_charsmap": b64encode(data).decode()}


def with_rules(directory: Path, **rules: Any) -> Path:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | rules))
    return directory


BOMBS = {
    "doubling": sequence(*[replace("a", "aa")] * 11),
    "forty doublings": sequence(*[replace("a", "aa")] * 40),
    "thousands": sequence(*[replace("a", "aa")] * 5000),
    "nested": sequence(*[sequence(*[replace("a", "aa")] * 4)] * 3),
    "one letter becomes many": replace("a", "b" * (GROWTH + 1)),
    "between any two letters": replace("", "b" * GROWTH, "Regex"),
    "an empty string": replace("", "b" * GROWTH),
    "put before": {"type": "Prepend", "prepend": "b" * GROWTH},
    "bytes": sequence(*[{"type": "ByteLevel"}] * 11),
    "a character map": precompiled(b"b" * (GROWTH + 1)),
    "mixed": sequence(precompiled(b"x" * 33), replace(" {2,}", "\u2581\u2581", "Regex"), replace("a", "b" * 8)),
}


@pytest.mark.parametrize("rules", BOMBS.values(), ids=BOMBS)
def test_rules_that_make_a_text_grow_are_refused_before_the_library_reads_them(bert_copy, monkeypatch, rules):
    with_rules(bert_copy, normalizer=rules)
    monkeypatch.setattr("tokenizers.Tokenizer.from_file", lambda path: pytest.fail("the library read it"))
    with pytest.raises(FastflowError, match=r"tokenizer\.json, field normalizer: its rules can make a text over 1024"):
        Runtime(bert_copy)


def test_a_pre_tokenizer_is_bounded_too(bert_copy):
    rules = {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False}] * 40}
    with pytest.raises(FastflowError, match=r"tokenizer\.json, field pre_tokenizer: its rules"):
        Runtime(with_rules(bert_copy, pre_tokenizer=rules))


def test_a_key_spelt_with_escapes_hides_nothing(bert_copy):
    path = with_rules(bert_copy, normalizer=BOMBS["forty doublings"]) / "tokenizer.json"
    path.write_text(path.read_text().replace('"normalizer"', '"\\u006eormalizer"'))
    with pytest.raises(FastflowError, match="field normalizer: its rules"):
        Runtime(bert_copy)


def test_rules_nested_too_deep_are_one_sentence(bert_copy):
    path = bert_copy / "tokenizer.json"
    deep = '{"type":"Sequence","normalizers":[' * 50_000
    path.write_text(path.read_text().replace('"normalizer":', f'"normalizer":{deep}', 1))
    with pytest.raises(FastflowError, match=r"tokenizer\.json cannot be read as a tokenizer") as caught:
        Runtime(bert_copy)
    assert "\n" not in str(caught.value)


REAL = {
    "xlm-roberta": sequence(precompiled(b"x" * 33, b"fi"), replace(" {2,}", "\u2581", "Regex")),
    "xlnet": sequence(replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "Lowercase"}),
    "spaces": sequence({"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")),
    "modernbert": {"type": "NFC"},
    "none": None,
}


@pytest.mark.parametrize("rules", REAL.values(), ids=REAL)
def test_rules_of_real_tokenizers_pass(bert_copy, rules):
    read_tokenizer_file(with_rules(bert_copy, normalizer=rules) / "tokenizer.json")


def test_the_tokenizer_in_the_package_passes(encoders):
    read_tokenizer_file(DEFAULT / "0_Transformer" / "tokenizer.json")
    for family in ("roberta", "xlm-roberta"):
        read_tokenizer_file(encoders(family) / "tokenizer.json")


@pytest.mark.parametrize("where", ["normalizer", "pre_tokenizer"])
def test_a_regex_that_backtracks_without_end_is_one_sentence(bert_copy, where):
    pattern = {"Regex": "(a+)+b"}
    rules = {
        "normalizer": {"type": "Replace", "pattern": pattern, "content": "x"},
        "pre_tokenizer": {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
    }
    tokenizer = Tokenizer(with_rules(bert_copy, **{where: rules[where]}), 64)
    with pytest.raises(FastflowError, match=r"the tokenizer cannot take a text: .*retry-limit-in-match") as caught:
        tokenizer(["a" * 40 + "c"])
    assert "\n" not in str(caught.value)
