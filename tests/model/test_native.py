"""Which tokenizers run compiled, BERT's WordPiece and Unigram, with the library's ids; the library runs the others."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.static.write import write_static
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.tokenizer.files import NotNativeError, load_tokenizer
from fastflow.model.tokenizer.native import read_native

from support.builders import FAMILIES, VOCABULARY, vocabulary_only, wordpiece
from support.refusals import refuses, spoil
from support.unicode import mixed
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

TOKENIZER = "tokenizer.json"
TRUNCATION = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
PADDING |= {"pad_token": "[PAD]"}
ROBERTA = {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": True}
CLS, TEXT = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}


def within(*path: str | int, **change: Any) -> Any:
    """A fault that updates the object at ``path`` of tokenizer.json."""

    def spoilt(tree: Any) -> None:
        for name in path:
            tree = tree[name]
        tree.update(change)

    return spoilt


def without(*path: str) -> Any:
    def spoilt(tree: Any) -> None:
        for name in path[:-1]:
            tree = tree[name]
        del tree[path[-1]]

    return spoilt


def twice(tree: Any) -> None:
    tree["added_tokens"].append(tree["added_tokens"][0])


def new_token(tree: Any) -> None:
    tree["added_tokens"].append(tree["added_tokens"][0] | {"content": "new", "id": len(VOCABULARY)})


def words(*added: str, first: int = len(VOCABULARY), **change: Any) -> Any:
    """A fault that adds words which are not cut, each a token of its own; ``change`` of the last."""

    def spoilt(tree: Any) -> None:
        plain = tree["added_tokens"][0] | {"special": False, "single_word": True, "normalized": True}
        tree["added_tokens"] += [plain | {"content": word, "id": first + i} for i, word in enumerate(added)]
        tree["added_tokens"][-1].update(change)

    return spoilt


NATIVE = {
    "as saved": {},
    "limits": {"truncation": TRUNCATION, "padding": PADDING},
    "limits of an old library": {"truncation": {"max_length": 9, "strategy": "LongestFirst", "stride": 0}},
    "batches": {"padding": PADDING | {"strategy": "BatchLongest", "pad_to_multiple_of": 8}},
    "BertProcessing": {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}},
    "RobertaProcessing": {"post_processor": ROBERTA | {"add_prefix_space": False}},
    "several at an end": within("post_processor", single=[CLS, CLS, TEXT, CLS]),
    "one end": within("post_processor", single=[TEXT, CLS]),
    "cased": within("normalizer", lowercase=False),
    "accents": within("normalizer", strip_accents=False, clean_text=False, handle_chinese_chars=False),
    "short words": within("model", max_input_chars_per_word=5),
    "spaces at a token": within("added_tokens", 4, lstrip=True, rstrip=True),
    "no decoder": {"decoder": None},
    "escaped": lambda tree: tree["model"]["vocab"].update({"\u00e9\U0001f600": tree["model"]["vocab"].pop("seven")}),
}


def check_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Check that the compiled tokenizer, and what it says of itself, is the library's."""
    assert tokenizer.runs == "native"
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


@pytest.mark.parametrize("fault", NATIVE.values(), ids=NATIVE)
@pytest.mark.parametrize("lower", [False, True])
def test_these_files_run_natively_with_the_ids_of_the_library(bert_copy, fault, lower):
    rng = Random(7)
    texts = ["", "The DOG sleeps [MASK] near it [SEP]", "river " * 40, *(mixed(rng, 8) for _ in range(60))]
    check_ids(Tokenizer(spoil(bert_copy, TOKENIZER, fault), 16, lower), texts)


OTHERS = {
    "two words in a token": (within("added_tokens", 4, single_word=True), "normalized or a single word"),
    "a special word": (within("added_tokens", 4, single_word=True, normalized=True), "'[MASK]' is special, or takes"),
    "a word with its space": (words("dog", lstrip=True), "'dog' is special, or takes spaces"),
    "a word of the vocabulary": (words("dog"), "its added word 'dog' has another id than the next one"),
    "normalized": (within("added_tokens", 4, normalized=True), "normalized or a single word"),
    "a new token": (new_token, "another id in the vocabulary"),
    "a token twice": (twice, "adds a token twice"),
    "no lower case": ({"normalizer": {"type": "NFC"}}, "its normalizer is NFC, not BertNormalizer"),
    "no normalizer": ({"normalizer": None}, "its normalizer is none"),
    "sequence": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}},
        "normalizer is Sequence",
    ),
    "spaces": ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre_tokenizer is Whitespace, not BertPreTokenizer"),
    "long words": (within("model", max_input_chars_per_word=10**6), "1000000 characters are cut"),
    "prefix": (within("model", continuing_subword_prefix="@@"), "prefix or strip_accents is not a usual one"),
    "strip": (without("normalizer", "strip_accents"), "the fields of its normalizer are not the usual ones"),
    "a field more": ({"surprise": 1}, "the fields of its tokenizer.json are not the usual ones"),
    "left": ({"truncation": TRUNCATION | {"direction": "Left"}}, "its truncation is not a usual one"),
    "old stride": ({"truncation": {"max_length": 9, "strategy": "LongestFirst", "stride": 3}}, "is not a usual one"),
    "no length": ({"truncation": {"strategy": "LongestFirst", "stride": 0}}, "fields of its truncation are not the"),
    "stride": ({"truncation": TRUNCATION | {"stride": 3}}, "its truncation is not a usual one"),
    "padding": ({"padding": PADDING | {"pad_to_multiple_of": "8"}}, "its padding is not a usual one"),
    "decoder": ({"decoder": {"type": "Fuse"}}, "its decoder is Fuse, not WordPiece"),
    "two texts": (within("post_processor", single=[CLS, TEXT, TEXT]), "does not have a text once"),
    "ids": (within("post_processor", "special_tokens", "[CLS]", ids=[2, 2]), "of its special token '[CLS]' are odd"),
}


REFUSED = {  # of these, by the library as well
    "a new token": f"{len(VOCABULARY) + 1} entries, more than the {len(VOCABULARY)}",
    "a field more": "tokenizer.json cannot be read as a tokenizer",
    "no length": "tokenizer.json cannot be read as a tokenizer",
    "padding": "tokenizer.json cannot be read as a tokenizer",
    "left": "tokenizer.json, field truncation.direction: only 'Right' is supported",
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_to_the_library(bert_copy, name):
    fault, reason = OTHERS[name]
    path = spoil(bert_copy, TOKENIZER, fault)
    with pytest.raises(NotNativeError, match=reason.replace("[", r"\[").replace("]", r"\]")):
        read_native((path / TOKENIZER).read_bytes(), False)
    if name in REFUSED:
        refuses(Tokenizer, path, REFUSED[name], max_length=16)
        return
    tokenizer = Tokenizer(path, 16)
    assert tokenizer.runs.startswith("tokenizers: ")
    library = load_tokenizer(path)
    library.no_padding()
    library.enable_truncation(16)
    text = "The dog  <mask> sees [MASK] a\u0301 bird"
    assert tokenizer([text]).ids.tolist() == library.encode(text).ids


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_that_run_natively(encoders, family):
    native = Tokenizer(encoders(family), 32).runs == "native"
    assert native == (family != "roberta")


def test_two_vocabularies_or_a_field_twice(bert_copy):
    data = (bert_copy / TOKENIZER).read_text()
    for odd in (
        data.replace('"unk_token"', '"vocab":{},"unk_token"', 1),
        data.replace('"lowercase"', '"lowercase":true,"lowercase"', 1),
        data.replace('"version"', '"deep":' + "[" * 10**5 + '"version"', 1),
        data.replace('"[UNK]"', '"[UNK]', 1),
        data.replace('"version"', '"\\ud800"', 1),
        "\ufeff" + data,
    ):
        with pytest.raises(NotNativeError):
            read_native(odd.encode(), False)
    with pytest.raises(NotNativeError):
        read_native(data.encode("utf-16"), False)


def test_a_key_inside_of_a_piece_is_not_the_vocabulary(tmp_path):
    tokenizer = wordpiece()
    tree = json.loads(tokenizer.to_str())
    for piece in ('"vocab":{', 'x"vocab', "vocab", '{"vocab":{"a":1}}'):
        tree["model"]["vocab"][piece] = len(tree["model"]["vocab"])
    assert len(read_native(json.dumps(tree).encode(), False).vocabulary) == len(VOCABULARY) + 4


@pytest.mark.parametrize("number", [-1, 1.5, 2**32, "1", None])
def test_an_odd_id_has_the_sentence_of_the_library(bert_copy, number):
    fault = within("model", "vocab", dog=number)
    refuses(
        Tokenizer,
        spoil(bert_copy, TOKENIZER, fault),
        "tokenizer.json cannot be read as a tokenizer",
        max_length=16,
    )


def test_without_the_extension_the_library_runs(bert_copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastflow.model.tokenizer.native", None)
    tokenizer = Tokenizer(bert_copy, 16)
    assert tokenizer.runs == "tokenizers: the compiled kernels are not installed"
    assert tokenizer(["the dog"]).ids.tolist()[0] == VOCABULARY.index("[CLS]")


def test_info_names_the_tokenizer(model, encoders):
    assert Runtime(model).info()["tokenizer"] == "native"
    assert Runtime(encoders("roberta")).info()["tokenizer"] == "tokenizers: its model is BPE, not WordPiece"


QUICK = """
import sys
from pathlib import Path
from fastflow.model.tokenizer import Tokenizer
tokenizer = Tokenizer(Path(sys.argv[1]), 16)
tokenizer.tokenize_prompted(["the dog"], "a ", False), tokenizer.special, tokenizer.pieces(["dog"]), tokenizer.size
assert "tokenizers" not in sys.modules
print(tokenizer.describe(["dog"])[0][1])
assert "tokenizers" in sys.modules
"""


@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.txt"])
def test_the_library_is_not_imported_before_it_is_needed(bert, tmp_path, run_python, kind):
    done = run_python(QUICK, bert if kind == TOKENIZER else vocabulary_only(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Piece(id={VOCABULARY.index('dog')}, text='dog', special=False, start=0, stop=3)")


def test_the_file_may_change_after_it_was_read(bert_copy):
    tokenizer = Tokenizer(bert_copy, 16)
    (bert_copy / TOKENIZER).write_text("{")
    assert tokenizer.describe(["dog"], special=False)[0][0].text == "dog"


# ---- Unigram

COUNT = len(make_xlm()["model"]["vocab"])


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
UNIGRAMS = {
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


@pytest.mark.parametrize("change", UNIGRAMS.values(), ids=UNIGRAMS)
@pytest.mark.parametrize("lower", [False, True])
def test_these_unigrams_run_natively_with_the_ids_of_the_library(tmp_path, change, lower):
    rng = Random(8)
    texts = ["", "The DOG  sleeps <mask> near it </s>", "river " * 40, ARABIC, *(draw(rng, 6) for _ in range(300))]
    check_ids(Tokenizer(write(tmp_path, make_xlm(), **change), 16, lower), texts)


PRECOMPILED = precompiled("nfkc")["precompiled_charsmap"]
OTHER_UNIGRAMS = {
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


@pytest.mark.parametrize(("change", "reason"), OTHER_UNIGRAMS.values(), ids=OTHER_UNIGRAMS)
def test_other_unigrams_are_left_to_the_library(change, reason):
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
