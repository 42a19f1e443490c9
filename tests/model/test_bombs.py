"""Rules of a tokenizer that make a text grow without end, and those of real tokenizers, which do not."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from fastflow import Runtime
from fastflow.model.locate import DEFAULT
from fastflow.model.tokenizer.limits import GROWTH, check_rules

from support.refusals import refuses, spoil


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def precompiled(*strings: bytes) -> dict[str, Any]:
    data = (4).to_bytes(4, "little") + bytes(4) + b"".join(string + b"\0" for string in strings)
    return {"type": "Precompiled", "precompiled_charsmap": b64encode(data).decode()}


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


PRE_TOKENIZER = {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False}] * 40}


@pytest.mark.parametrize(
    ("part", "rules"), [*(("normalizer", rules) for rules in BOMBS.values()), ("pre_tokenizer", PRE_TOKENIZER)]
)
@pytest.mark.parametrize("spelling", ["plain", "with escapes"])
def test_rules_that_make_a_text_grow_are_refused_before_the_library_reads_them(
    bert_copy, monkeypatch, part, rules, spelling
):
    path = spoil(bert_copy, "tokenizer.json", {part: rules}) / "tokenizer.json"
    if spelling == "with escapes":
        path.write_text(path.read_text().replace(f'"{part}"', f'"\\u{ord(part[0]):04x}{part[1:]}"'))
    monkeypatch.setattr("tokenizers.Tokenizer.from_file", lambda path: pytest.fail("the library read it"))
    refuses(Runtime, bert_copy, f"tokenizer.json, field {part}: its rules can make a text over 1024")


def test_rules_nested_too_deep_are_one_sentence(bert_copy):
    path = bert_copy / "tokenizer.json"
    deep = '{"type":"Sequence","normalizers":[' * 50_000
    path.write_text(path.read_text().replace('"normalizer":', f'"normalizer":{deep}', 1))
    refuses(Runtime, bert_copy, "tokenizer.json cannot be read as a tokenizer")


REAL = {
    "xlm-roberta": sequence(precompiled(b"x" * 33, b"fi"), replace(" {2,}", "\u2581", "Regex")),
    "xlnet": sequence(replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "Lowercase"}),
    "spaces": sequence({"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")),
    "modernbert": {"type": "NFC"},
    "none": None,
}


def passes(directory: Path) -> None:
    check_rules((directory / "tokenizer.json").read_bytes(), directory)


@pytest.mark.parametrize("rules", REAL.values(), ids=REAL)
def test_rules_of_real_tokenizers_pass(bert_copy, rules):
    passes(spoil(bert_copy, "tokenizer.json", {"normalizer": rules}))


def test_the_tokenizer_in_the_package_passes(encoders):
    passes(DEFAULT / "0_Transformer")
    for family in ("roberta", "xlm-roberta"):
        passes(encoders(family))
