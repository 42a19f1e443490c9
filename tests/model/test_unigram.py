"""Which Unigram tokenizers are compiled, with the library's ids; the library runs the others."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.static.write import write_static
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.tokenizer.files import NotNativeError
from fastflow.model.tokenizer.native import read_native

from support.unigrams import (
    MARKED,
    RIGHT,
    SPACES,
    SPLIT,
    as_bytes,
    draw,
    make_xlm,
    metaspace,
    precompiled,
    sequence,
    token,
)

COUNT = len(make_xlm()["model"]["vocab"])
TRUNCATION = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}


def write(folder: Path, tree: dict[str, Any], **change: Any) -> Path:
    """Write a tokenizer and the configuration of its encoder."""
    (folder / "tokenizer.json").write_bytes(as_bytes(tree | change))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 20_000}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


def model(**change: Any) -> dict[str, Any]:
    return {"model": make_xlm()["model"] | change}


def normalizer(*parts: Any) -> dict[str, Any]:
    return {"normalizer": sequence(*parts)}


def added(*tokens: dict[str, Any]) -> dict[str, Any]:
    return {"added_tokens": list(tokens)}


OLD = {"type": "Metaspace", "replacement": "\u2581", "str_rep": "\u2581", "add_prefix_space": True}
FORMS = [{"type": form} for form in ("NFKC", "NFC", "NFKD", "NFD")]
ARABIC = "\u0627\u0644\u0633\u0644\u0627\u0645"
NATIVE = {
    "XLM-R": {},
    "T5": {"normalizer": precompiled("nmt_nfkc"), "pre_tokenizer": metaspace(), "decoder": metaspace()},
    "new": normalizer(precompiled("nfkc_cf"), RIGHT, MARKED) | {"pre_tokenizer": metaspace()},
    "old": {"pre_tokenizer": sequence(SPLIT, OLD), "decoder": OLD},
    "no normalizer": {"normalizer": None},
    "an empty sequence": {"normalizer": {"type": "Sequence", "normalizers": []}},
    "forms": normalizer(*FORMS),
    "lower, unmarked": normalizer({"type": "Lowercase"}, {"type": "StripAccents"}),
    "limits": {"truncation": TRUNCATION},
    "no byte_fallback": {"model": {k: v for k, v in make_xlm()["model"].items() if k != "byte_fallback"}},
    "no added tokens": added(),
    "new tokens": added(token("<a>", COUNT), token("<s>", 1), token("<b>", COUNT + 1, special=False)),
    "normalized": added(token("<mask>", COUNT, lstrip=True, normalized=True), token("<s>", 1, normalized=True)),
    "a piece twice": {"model": make_xlm()["model"] | {"vocab": [*make_xlm()["model"]["vocab"], ["a", 3]]}, **added()},
}


@pytest.mark.parametrize("change", NATIVE.values(), ids=NATIVE)
@pytest.mark.parametrize("lower", [False, True])
def test_these_files_run_natively_with_the_ids_of_the_library(tmp_path, change, lower):
    tokenizer = Tokenizer(write(tmp_path, make_xlm(), **change), 16, lower)
    assert tokenizer.runs == "native"
    rng = Random(8)
    texts = ["", "The DOG  sleeps <mask> near it </s>", "river " * 40, ARABIC, *(draw(rng, 6) for _ in range(300))]
    found, wanted = tokenizer(texts), tokenizer._by_library(texts)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert tokenizer.size == tokenizer._tokenizer.get_vocab_size()
    known = tokenizer._tokenizer.get_added_tokens_decoder()
    assert tokenizer.special == [known[i].content for i in sorted(known) if known[i].special]
    assert sorted(tokenizer._native.lengths()) == sorted(map(len, tokenizer._tokenizer.get_vocab()))
    words = ["dogs", "\u2603", "seven", "x" * 300, "\u4e2d"]
    native = tokenizer.pieces(words)
    tokenizer._native = None
    assert tokenizer.pieces(words) == native


PRECOMPILED = precompiled("nfkc")["precompiled_charsmap"]
OTHERS = {
    "no unknown id": (model(unk_id=None), "the field unk_id of its model is not a whole number"),
    "an unknown id without a piece": (model(unk_id=COUNT), "has no piece with a score"),
    "a field more": (model(surprise=1), "the fields of its model are not the usual ones"),
    "a long piece": (model(vocab=[["<unk>", 0], ["x" * 300, 0]]), "is no JSON of pieces and ids or scores"),
    "no pieces": (model(vocab=[]), "is no JSON of pieces and ids or scores"),
    "a score that is none": (model(vocab=[["<unk>", None]]), "is no JSON of pieces and ids or scores"),
    "a single word": (added(token("<a>", COUNT, single_word=True)), "'<a>' is a single word"),
    "another id": (added(token("<a>", COUNT + 1)), "'<a>' has another id than the library gives it"),
    "another id of a piece": (added(token("<s>", 2)), "'<s>' has another id than the library gives it"),
    "letters": (added(token("ĸ", COUNT)), "is no word of ASCII"),
    "takes spaces": (added(token("<a>", COUNT, rstrip=True)), "takes the spaces after it"),
    "nothing once normalized": (
        added(token("<a>", COUNT, normalized=True))
        | normalizer(SPACES | {"pattern": {"String": "<a>"}, "content": ""}),
        "'' is no word of ASCII",
    ),
    "pieces of bytes": (model(byte_fallback=True), "the fields of its model are not the usual ones"),
    "left spaces": (normalizer(RIGHT | {"strip_left": True}), "strips another side than the right one"),
    "many steps": (normalizer(*FORMS * 5), "the normalizer has 20 steps, more than 16"),
    "another rule": (normalizer({"type": "Nmt"}), "its normalizer is Nmt, not Precompiled"),
    "another pattern": (normalizer(SPACES | {"pattern": {"Regex": "a+"}}), "replaces another pattern"),
    "an empty pattern": (normalizer(SPACES | {"pattern": {"String": ""}}), "replaces another pattern"),
    "growth": (normalizer(SPACES | {"pattern": {"String": "a"}, "content": "b" * 2000}), "over 1024 times longer"),
    "half a map": (normalizer({"type": "Precompiled", "precompiled_charsmap": PRECOMPILED[:400]}), "is cut short"),
    "no map": (normalizer({"type": "Precompiled", "precompiled_charsmap": ""}), "is cut short"),
    "an odd map": (normalizer({"type": "Precompiled", "precompiled_charsmap": "?"}), ""),
    "another splitter": ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre_tokenizer is Whitespace, not Metaspace"),
    "no splitter": ({"pre_tokenizer": None}, "its pre_tokenizer is none, not Metaspace"),
    "words": ({"pre_tokenizer": SPLIT}, "other parts than WhitespaceSplit and Metaspace"),
    "two splitters": (
        {"pre_tokenizer": sequence(metaspace(), SPLIT)},
        "other parts than WhitespaceSplit and Metaspace",
    ),
    "another mark": ({"pre_tokenizer": metaspace() | {"replacement": "_"}}, "is not a usual Metaspace"),
    "another scheme": ({"pre_tokenizer": metaspace("first")}, "is not a usual Metaspace"),
    "whole": ({"pre_tokenizer": metaspace(split=False)}, "is not a usual Metaspace"),
    "schemes that differ": ({"pre_tokenizer": metaspace() | {"add_prefix_space": False}}, "is not a usual Metaspace"),
    "decoder": ({"decoder": {"type": "Fuse"}}, "its decoder is Fuse, not Metaspace"),
    "left": ({"truncation": TRUNCATION | {"stride": 1}}, "its truncation is not a usual one"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_the_library(name):
    change, reason = OTHERS[name]
    with pytest.raises(NotNativeError) as raised:
        read_native(as_bytes(make_xlm() | change), False)
    assert reason in str(raised.value)


def test_a_table_is_embedded_in_one_call(tmp_path):
    """Also with a form of Unicode, for which the separate steps ask the library."""
    from tokenizers import Tokenizer as Library

    rng = Random(3)
    texts = ["the dog sees a bird", *(draw(rng, 4) for _ in range(60))]
    for name, normalizer in (("map", {}), ("form", {"normalizer": {"type": "NFKC"}})):
        library = Library.from_buffer(as_bytes(make_xlm() | normalizer))
        rows = np.random.default_rng(0).normal(0, 0.1, (library.get_vocab_size(), 8))
        path = tmp_path / name
        write_static(path, library, rows, max_length=None)
        runtime = Runtime(path, backend="cpu")
        assert runtime.info()["tokenizer"] == "native"
        wanted = Runtime(path, backend="reference", dtype="float64").encode(texts)
        np.testing.assert_allclose(runtime.encode(texts), wanted, atol=1e-6)


def test_a_map_that_the_library_cannot_use_is_an_error(tmp_path):
    """Its first unit leads out of the map."""
    units = (8).to_bytes(4, "little") + b"\0\xff\xff\0" * 2
    broken = {"type": "Precompiled", "precompiled_charsmap": b64encode(units + b"a").decode()}
    tokenizer = Tokenizer(write(tmp_path, make_xlm(), normalizer=broken), 16)
    assert tokenizer.runs == "native"
    with pytest.raises(FastflowError, match=r"tokenizer\.json, field normalizer: cannot take a text"):
        tokenizer(["a dog"])
