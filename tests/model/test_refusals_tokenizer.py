"""The refusal contract of tokenizers: files that cannot be used, and texts that a tokenizer cannot take."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.backends.choose import open_backend
from fastflow.model.artifact import load_model
from fastflow.model.locate import UNTUNED
from fastflow.model.tokenizer import Tokenizer, Tokens
from fastflow.model.tokenizer.files import GROWTH, check_rules

from support.builders import VOCABULARY, vocabulary_only
from support.gpu_standin import use_standin
from support.refusals import DEEP, copy_of, refuses, refuses_to_run, spoil

TOKENIZER, VOCAB, SETTINGS = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
PIECES = "\n".join(VOCABULARY)
CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}


def change(name, value):
    """A fault that changes fields inside of tokenizer.json: ``name`` is the part that holds them."""
    return lambda tree: tree[name].update(value)


def with_word_beyond(tree):
    tree["model"]["vocab"]["dog"] = 10**6


def with_token_beyond(tree):
    tree["added_tokens"].append(tree["added_tokens"][-1] | {"id": 10**6, "content": "zebra"})


def with_template_beyond(tree):
    tree["post_processor"]["special_tokens"]["[CLS]"]["ids"] = [len(VOCABULARY)]


def with_one_more_word(tree):
    tree["added_tokens"].append(tree["added_tokens"][-1] | {"id": len(VOCABULARY), "content": "brandnew"})


def without_unknown(tree):
    del tree["model"]["vocab"]["[UNK]"]
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] != "[UNK]"]


def charsmap(data: bytes):
    return {"type": "Precompiled", "precompiled_charsmap": b64encode(data).decode()}


NESTED = '{"type":"Sequence","normalizers":['
TOKENIZERS = [
    ("bert", None, "has no tokenizer: neither tokenizer.json nor vocab.txt"),
    ("bert", "{", "tokenizer.json cannot be read as a tokenizer"),
    ("bert", "{}", "tokenizer.json cannot be read as a tokenizer"),
    *(("bert", deep, "tokenizer.json cannot be read") for deep in (DEEP, '{"normalizer":' + NESTED * 50_000)),
    ("bert", with_one_more_word, f"{len(VOCABULARY) + 1} entries, more than the {len(VOCABULARY)}"),
    ("bert", {"post_processor": None}, "tokenizer.json, field post_processor: adds no [CLS]"),
    ("bert", change("post_processor", {"single": [CLS] * 200}), "adds 200 tokens to a text, of 128 at most"),
    ("bert", {"normalizer": charsmap(b"\xff" * 8)}, "tokenizer.json cannot be read … precompiled_charsmap is dam"),
    ("roberta", change("model", {"dropout": 0.1}), "tokenizer.json, field dropout: must be null"),
]
VOCABULARIES = [
    (VOCAB, "the\ndog\n", "vocab.txt lacks [UNK], [CLS], [SEP]"),
    (VOCAB, b"[UNK]\n\xff\n", "vocab.txt cannot be read"),
    # MPNet's file holds [CLS] and [SEP], and its texts stand between <s> and </s>
    (VOCAB, "\n".join(["<s>", "<pad>", "</s>", "<unk>", PIECES]), "vocab.txt is not a BERT vocabulary: it has <s> and"),
    (SETTINGS, "{", "tokenizer_config.json is not JSON"),
    (SETTINGS, "[]", "tokenizer_config.json cannot be read"),
    (SETTINGS, DEEP, "tokenizer_config.json cannot be read: its JSON is nested too deep"),
    (SETTINGS, {"do_lower_case": "no"}, "field do_lower_case: must be true or false"),
    (SETTINGS, {"strip_accents": 1}, "field strip_accents: must be true or false"),
    (SETTINGS, {"tokenize_chinese_chars": None}, "field tokenize_chinese_chars: must be true or false"),
    # a Japanese BERT's: its words are found by MeCab, which BERT's rules would silently replace
    (
        SETTINGS,
        {"tokenizer_class": "BertJapaneseTokenizer"},
        "belongs to a 'BertJapaneseTokenizer', which is not BERT's",
    ),
    (SETTINGS, {"word_tokenizer_type": "mecab"}, "word_tokenizer_type: must be \"basic\", not 'mecab'"),
    (SETTINGS, {"subword_tokenizer_type": "character"}, "must be \"wordpiece\", not 'character'"),
    (SETTINGS, {"do_basic_tokenize": False}, "field do_basic_tokenize: must be true, not False"),
    (SETTINGS, {"tokenizer_class": ["BertTokenizer"]}, "vocab.txt belongs to a ['BertTokenizer'], which is not BERT's"),
    ("config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "vocab.txt belongs to a 'BertJapaneseTokenizer'"),
    ("config.json", {"model_type": "roformer"}, "vocab.txt belongs to a 'RoFormerTokenizer', which is not BERT's"),
]


@pytest.mark.parametrize(("family", "fault", "sentence"), TOKENIZERS)
def test_a_tokenizer_that_cannot_be_used(encoders, tmp_path, family, fault, sentence):
    refuses_to_run(copy_of(encoders(family), tmp_path / family, TOKENIZER, fault), sentence, "reference")


@pytest.mark.parametrize(("file", "fault", "sentence"), VOCABULARIES)
def test_a_vocabulary_that_cannot_be_used(tmp_path, file, fault, sentence):
    refuses(Tokenizer, spoil(vocabulary_only(tmp_path), file, fault), sentence, max_length=64)


@pytest.mark.parametrize("fault", [with_word_beyond, with_token_beyond, with_template_beyond])
@pytest.mark.parametrize("name", ["cpu", "reference", "torch", "triton"])
def test_an_id_beyond_the_embedding_table_is_found_at_load(bert_copy, fault, name, monkeypatch):
    use_standin(monkeypatch)
    spoil(bert_copy, TOKENIZER, fault)
    device, said = "cuda" if name == "triton" else "cpu", f", more than the {len(VOCABULARY)} of"
    refuses(Runtime, bert_copy, said, device=device, backend=name)


@pytest.mark.parametrize("odd", [len(VOCABULARY), -1, 2**31 - 1])
@pytest.mark.parametrize("name", ["cpu", "reference", "torch", "triton"])
def test_every_backend_refuses_ids_that_it_has_no_row_for(bert, odd, name, monkeypatch):
    use_standin(monkeypatch)
    opened = open_backend(load_model(bert), name, "cuda" if name == "triton" else "cpu", "auto", None)
    tokens = Tokens(np.array([2, 7, 3, 2, odd, 3], np.int32), np.array([0, 3, 6]), np.empty(0, np.int64))
    said = "text 1 has no tokens, too many, or an id outside the vocabulary" if name == "cpu" else f"token id {odd}"
    refuses(opened.pool, tokens, said)
    refuses(lambda tokens: opened.embed(tokens, [np.arange(2)]), tokens, said)


@pytest.mark.parametrize("data", [b"", b"abc", b"\4\0\0\0", b"\4\0\0\0" + bytes(4) + b"\xff", None])
def test_a_map_that_the_tokenizers_library_panics_at_is_not_handed_over(bert_copy, data, capfd):
    normalizer = charsmap(b"") | {"precompiled_charsmap": "!"} if data is None else charsmap(data)
    said = "tokenizer.json cannot be read as a tokenizer: its precompiled_charsmap is damaged"
    refuses(Runtime, spoil(bert_copy, TOKENIZER, {"normalizer": normalizer}), said)
    assert "panicked" not in capfd.readouterr().err


PATTERN = {"Regex": "(a+)+b"}  # which backtracks without end
REPLACE = {"type": "Replace", "pattern": PATTERN, "content": "x"}
SPLIT = {"type": "Split", "pattern": PATTERN, "behavior": "Isolated", "invert": False}
EMPTY_TRIE = (4).to_bytes(4, "little") + bytes(4) + b"abc"


@pytest.mark.parametrize(
    ("fault", "text", "sentence"),
    [
        ({"normalizer": charsmap(EMPTY_TRIE)}, "the dog", "the tokenizer cannot take a text: index out of bounds"),
        ({"normalizer": REPLACE}, "a" * 40 + "c", "the tokenizer cannot take a text: …retry-limit-in-match"),
        ({"pre_tokenizer": SPLIT}, "a" * 40 + "c", "the tokenizer cannot take a text: …retry-limit-in-match"),
        (without_unknown, "\u4e2d\u6587", "the tokenizer cannot take a text: … [UNK]"),
        ({}, "a\ud800b", "half a surrogate pair … 'a\\ud800b'"),
    ],
)
def test_a_text_that_the_tokenizer_cannot_take(bert_copy, fault, text, sentence, backend):
    runtime = Runtime(spoil(bert_copy, TOKENIZER, fault), backend=backend)
    refuses(runtime.encode, [text], sentence)
    assert runtime.encode([]).shape == (0, 32)


# ---- rules that make a text grow without end


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def precompiled(*strings: bytes) -> dict[str, Any]:
    return charsmap((4).to_bytes(4, "little") + bytes(4) + b"".join(string + b"\0" for string in strings))


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
    path = spoil(bert_copy, TOKENIZER, {part: rules}) / TOKENIZER
    if spelling == "with escapes":
        path.write_text(path.read_text().replace(f'"{part}"', f'"\\u{ord(part[0]):04x}{part[1:]}"'))
    monkeypatch.setattr("tokenizers.Tokenizer.from_file", lambda path: pytest.fail("the library read it"))
    refuses(Runtime, bert_copy, f"tokenizer.json, field {part}: its rules can make a text over 1024")


REAL = {
    "xlm-roberta": sequence(precompiled(b"x" * 33, b"fi"), replace(" {2,}", "\u2581", "Regex")),
    "xlnet": sequence(replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "Lowercase"}),
    "spaces": sequence({"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")),
    "modernbert": {"type": "NFC"},
    "none": None,
}


@pytest.mark.parametrize("rules", REAL.values(), ids=REAL)
def test_rules_of_real_tokenizers_pass(encoders, bert_copy, rules):
    spoil(bert_copy, TOKENIZER, {"normalizer": rules})
    for directory in (bert_copy, UNTUNED / "0_Transformer", encoders("roberta"), encoders("xlm-roberta")):
        check_rules((directory / TOKENIZER).read_bytes(), directory)
