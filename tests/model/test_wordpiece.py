"""Which tokenizers the compiled WordPiece runs: those of BERT, with the library's ids; every other is the library's."""

from __future__ import annotations

import json
import sys
from random import Random
from typing import Any

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.tokenizer.files import NotNativeError, load_tokenizer
from fastflow.model.tokenizer.native import read_native

from support.builders import FAMILIES, VOCABULARY, fairseq_wordpiece, vocabulary_only, wordpiece
from support.refusals import refuses, spoil
from support.unicode import mixed

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


@pytest.mark.parametrize("fault", NATIVE.values(), ids=NATIVE)
@pytest.mark.parametrize("lower", [False, True])
def test_these_files_run_natively_with_the_ids_of_the_library(bert_copy, fault, lower):
    tokenizer = Tokenizer(spoil(bert_copy, TOKENIZER, fault), 16, lower)
    assert tokenizer.runs == "native"
    rng = Random(7)
    texts = ["", "The DOG sleeps [MASK] near it [SEP]", "river " * 40, *(mixed(rng, 8) for _ in range(60))]
    found, wanted = tokenizer(texts), tokenizer._by_library(texts)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert tokenizer.size == tokenizer._tokenizer.get_vocab_size()
    known = tokenizer._tokenizer.get_added_tokens_decoder()
    assert tokenizer.special == [known[i].content for i in sorted(known) if known[i].special]
    words = ["dogs", "\u2603", "seven", "x" * 300, "\u4e2d"]
    native = tokenizer.pieces(words)
    tokenizer._native = None
    assert tokenizer.pieces(words) == native


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
        Tokenizer, spoil(bert_copy, TOKENIZER, fault), "tokenizer.json cannot be read as a tokenizer", max_length=16
    )


def test_mpnet_runs_natively(tmp_path):
    """Its mask takes the spaces before it, which no id shows."""
    from tokenizers import AddedToken

    tokenizer = fairseq_wordpiece()
    tokenizer.add_special_tokens([AddedToken("dog", lstrip=True, special=True)])
    found = read_native(tokenizer.to_str().encode(), False)
    texts = ["the  dog\u3000 dogdog", "adog", " \tdog"]
    ids, offsets, _ = found.tokenizer.tokenize(texts, 99)
    assert ids.tolist() == [i for each in tokenizer.encode_batch(texts) for i in each.ids]
    assert len(offsets) == 4


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
