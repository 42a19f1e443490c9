"""Tokens: the ids of transformers, also with the files next to tokenizer.json; packing, and cutting into batches.

tests/across/test_fields.py walks over every field of the files, with vectors; here are the ids.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.encoder.weights import encoder_hash
from fastflow.model.tokenizer import Tokenizer, Tokens
from fastflow.model.tokenizer.files import load_tokenizer

from support.builders import FAMILIES, VOCABULARY, WORDS, make_model, make_sentences, vocabulary_only
from support.fields import ADDED, MAP, SETTINGS, TOKENIZER, special
from support.refusals import copy_of, refuses, spoil

TEXTS = [
    "The dog sleeps near it.",
    "",
    "   ",
    "a",
    "DOG!! 42-7,  cat's\ttree\u00a0river\x00\u200bx",
    "Éléphant naïve ÅNGSTRÖM straße \u212b e\u0301",
    "\u4e2d\u6587 mixed \U0001f600 [MASK] [SEP] <pad> <mask>",
    "unknownwordwithoutend" * 8,
    "\u2028 separators \u2029 \u0085",
]


def pack(lengths: list[int]) -> Tokens:
    return Tokens(np.arange(sum(lengths), dtype=np.int32), np.r_[0, np.cumsum(lengths)], np.empty(0, np.int64))


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_equal_transformers(encoders, family):
    theirs = transformers.AutoTokenizer.from_pretrained(encoders(family))
    tokens = Tokenizer(encoders(family), 128)(TEXTS)
    assert tokens.ids.dtype == np.int32
    assert len(tokens.offsets) == len(TEXTS) + 1
    for i, text in enumerate(TEXTS):
        want = theirs(text, truncation=True, max_length=128)["input_ids"]
        assert tokens.ids[tokens.offsets[i] : tokens.offsets[i + 1]].tolist() == want


BERTS = ("PreTrainedTokenizerFast", "BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizerFast")


@pytest.mark.parametrize("name", [None, *BERTS])
def test_vocab_txt_of_a_class_that_cuts_as_bert_does_gives_the_ids_of_tokenizer_json(bert, tmp_path, name):
    ours = Tokenizer(vocabulary_only(tmp_path, tokenizer_class=name, do_basic_tokenize=True), 64)(TEXTS)
    assert all(np.array_equal(a, b) for a, b in zip(ours, Tokenizer(bert, 64)(TEXTS), strict=True))


def test_settings_next_to_a_vocab_txt_are_obeyed(tmp_path):
    unknown = [VOCABULARY.index("[UNK]")]
    for change, text in (({"do_lower_case": False}, "The"), ({"additional_special_tokens": ["dog"]}, "dogruns")):
        before, after = (Tokenizer(vocabulary_only(tmp_path, **each), 64)([text]).ids for each in ({}, change))
        assert before.tolist() != after.tolist()
    cased = Tokenizer(vocabulary_only(tmp_path, do_lower_case=False), 64)(["the", "The"])
    assert ids(cased) == [[2, VOCABULARY.index("the"), 3], [2, *unknown, 3]]


def test_a_vocabulary_line_that_python_would_split_is_one_piece(tmp_path):
    pieces = [*VOCABULARY, "x\u2028y", "last"]
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": len(pieces)}))
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    assert Tokenizer(tmp_path, 8)(["last"]).ids.tolist() == [2, len(pieces) - 1, 3]


def test_long_texts_are_cut_and_counted(bert):
    lengths = [1, 5, 6, 7, 30]  # words; two special tokens come on top
    tokens = Tokenizer(bert, 8)([" ".join(["dog"] * n) for n in lengths])
    assert np.diff(tokens.offsets).tolist() == [3, 7, 8, 8, 8]
    assert tokens.cut.tolist() == [3, 4]
    assert tokens.ids[tokens.offsets[1:] - 1].tolist() == [VOCABULARY.index("[SEP]")] * 5
    assert tokens.select(np.array([4, 0, 3])).cut.tolist() == [0, 2]


def test_nothing_is_padded_though_the_file_says_so(bert_copy, bert):
    from tokenizers import Tokenizer as Saved

    saved = Saved.from_file(str(bert_copy / "tokenizer.json"))
    saved.enable_padding(length=64)
    saved.enable_truncation(3)
    saved.save(str(bert_copy / "tokenizer.json"))
    ours, want = Tokenizer(bert_copy, 64)(TEXTS), Tokenizer(bert, 64)(TEXTS)
    assert all(np.array_equal(a, b) for a, b in zip(ours, want, strict=True))


def test_select_repeats_and_reorders_texts():
    tokens = pack([2, 0, 3, 1])
    chosen = tokens.select(np.array([3, 0, 2, 0, 1]))
    assert chosen.ids.tolist() == [5, 0, 1, 2, 3, 4, 0, 1]
    assert chosen.offsets.tolist() == [0, 1, 3, 6, 8, 8]
    assert tokens.select(np.empty(0, np.int64)).offsets.tolist() == [0]


@settings(deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 130), max_size=80), texts=st.integers(1, 40), budget=st.integers(1, 600))
def test_batches_hold_every_row_once_within_budget(lengths, texts, budget):
    batches = list(pack(lengths).batches(texts, budget))
    rows = np.concatenate([*batches, np.empty(0, np.int64)])
    assert sorted(rows.tolist()) == list(range(len(lengths)))
    sizes = np.array(lengths, int)
    assert (np.diff(sizes[rows.astype(int)]) <= 0).all()  # longest first
    for batch in batches:
        assert 1 <= len(batch) <= texts
        assert len(batch) == 1 or len(batch) * sizes[batch].max() <= budget


@pytest.mark.slow
@pytest.mark.data
def test_the_original_bert_vocabulary_in_both_forms(shared_data, tmp_path):
    model, vocabulary = shared_data / "models" / "mini-mlm-uncased", shared_data / "models" / "bert-uncased-vocab"
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((vocabulary / name).read_bytes())
    texts = (shared_data / "sts" / "STS16.tsv").read_text(encoding="utf-8").split("\n") + TEXTS + WORDS
    ours, want = Tokenizer(tmp_path, 128)(texts), Tokenizer(model, 128)(texts)
    assert len(ours.ids) > 20_000
    assert all(np.array_equal(a, b) for a, b in zip(ours, want, strict=True))


def test_an_error_of_a_tokenizer_goes_before_one_of_the_backend(bert_copy):
    (bert_copy / "tokenizer.json").write_text("{")
    with pytest.raises(FastflowError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        Runtime(bert_copy)
    with pytest.raises(FastflowError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        Runtime(bert_copy, dtype="float64", backend="cpu")  # which the backend refuses too
    (bert_copy / "tokenizer.json").unlink()
    with pytest.raises(FastflowError, match="has no tokenizer"):
        Runtime(bert_copy)


# ---- the files next to tokenizer.json

NEXT_TO = [*TEXTS[:6], "The Dog SINGS in PARIS", "Élan 東京 dog", "a <mask> dog [MASK] the", "dogruns", " the"]
DOG = VOCABULARY.index("dog")
BERT = {"tokenizer_class": "BertTokenizer"}
CASED = {
    **{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
    **{"strip_accents": None, "lowercase": False},
}
SPACED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
CHANGES = {  # family, then (file, change) ...; the tokenizer class is BERT's unless a change says otherwise
    "cased by tokenizer_config.json": ("bert", (SETTINGS, {"do_lower_case": False})),
    "lowercased, though tokenizer.json is cased": ("bert", (TOKENIZER, {"normalizer": CASED})),
    "accents kept": ("bert", (SETTINGS, {"strip_accents": False})),
    "ideographs joined": ("bert", (SETTINGS, {"tokenize_chinese_chars": False})),
    "an added token": ("bert", (SETTINGS, {"added_tokens_decoder": {str(DOG): special("dog")}})),
    "additional tokens": ("bert", (SETTINGS, {"additional_special_tokens": ["dog"]})),
    "extra tokens": ("bert", (SETTINGS, {"extra_special_tokens": {"dog_token": "dog"}})),
    "the map": ("bert", (MAP, {"additional_special_tokens": ["dog"]})),
    "the map behind an added_tokens_decoder": (
        "bert", (MAP, {"additional_special_tokens": ["dog"]}), (SETTINGS, {"added_tokens_decoder": {}}),
    ),
    "added_tokens.json": ("bert", (ADDED, {"dog": DOG})),
    "another padding token": ("bert", (SETTINGS, {"pad_token": "dog"})),
    "as the file is": ("bert", (SETTINGS, {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False})),
    "no settings at all": ("bert", (SETTINGS, None)),
    "a space before the first word": (
        "roberta", (SETTINGS, {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
    ),
    "no space, though tokenizer.json has one": (
        "roberta", (SETTINGS, {"tokenizer_class": "RobertaTokenizer"}),
        (TOKENIZER, {"pre_tokenizer": SPACED}),
    ),
}  # fmt: skip
REFUSED = {  # the change, and what is said
    "cut at the head": (SETTINGS, {"truncation_side": "left"}, "field truncation_side: only \"right\""),
    "padded at the head": (SETTINGS, {"padding_side": "left"}, "field padding_side: only \"right\""),
    "special tokens as words": (SETTINGS, {"split_special_tokens": True}, "field split_special_tokens: only false"),
    "no mask": (SETTINGS, {"model_input_names": ["input_ids"]}, "field model_input_names: must have attention_mask"),
    "another file": (SETTINGS, {"tokenizer_file": "x"}, "field tokenizer_file: only null"),
    "not a flag": (SETTINGS, {"do_lower_case": "yes"}, "field do_lower_case: must be true or false"),
    "not a token": (SETTINGS, {"cls_token": {"a": 1}}, "field cls_token: must be a token"),
    "not tokens": (SETTINGS, {"added_tokens_decoder": [1]}, "field added_tokens_decoder: must be an object"),
    "no ids": (ADDED, {"dog": "x"}, "added_tokens.json: must be an object of token ids, not 'x'"),
    "another end": (SETTINGS, {"sep_token": "dog"}, "field sep_token: is 'dog', and the post_processor"),
    "a new token": (MAP, {"bos_token": "<new>"}, "special_tokens_map.json, field bos_token: adds '<new>', and"),
    "a new added token": (ADDED, {"<new>": len(VOCABULARY)}, "added_tokens.json: adds '<new>', and the encoder's"),
    "release 5 alone": (SETTINGS, {"image_token": "dog"}, "field image_token: is 'dog', which the added_tokens"),
    "unclean": (TOKENIZER, {"normalizer": CASED | {"clean_text": False}}, "field normalizer.clean_text"),
    "other words": (TOKENIZER, {"pre_tokenizer": {"type": "Whitespace"}}, "field pre_tokenizer: must be \"BertPre"),
}  # fmt: skip


@pytest.fixture
def changed(encoders, tmp_path):
    """``changed(family, *changes)``: a copy of an encoder that BERT's class opens, with the changes."""

    def get(family, *changes):
        path = copy_of(encoders(family), tmp_path / family, SETTINGS, BERT)
        for file, value in changes:
            spoil(path, file, value)
        return path

    return get


def ids(tokens):
    return [tokens.ids[a:b].tolist() for a, b in zip(tokens.offsets, tokens.offsets[1:], strict=False)]


@pytest.mark.parametrize("name", CHANGES)
def test_the_ids_are_those_of_transformers(changed, name):
    path = changed(*CHANGES[name])
    theirs, library = transformers.AutoTokenizer.from_pretrained(path), load_tokenizer(path)
    want = [theirs(text)["input_ids"] for text in NEXT_TO]
    assert ids(Tokenizer(path, 64)(NEXT_TO)) == want
    assert [library.encode(text).ids for text in NEXT_TO] == want


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_obeyed_is_refused(changed, name):
    file, fault, sentence = REFUSED[name]
    refuses(Tokenizer, changed("bert", (file, fault)), sentence, max_length=64)


def test_a_saved_model_has_the_tokenizer_of_its_encoder(changed, tmp_path):
    path = changed("bert", (SETTINGS, {"do_lower_case": False}), (MAP, {"additional_special_tokens": ["dog"]}))
    saved = make_model(tmp_path / "model", path, make_sentences(60), "whiten")
    want = ids(Tokenizer(path, 64)(NEXT_TO))
    assert ids(load_model(saved).tokenizer()(NEXT_TO)) == want


@pytest.mark.parametrize("file", [MAP, ADDED])
def test_the_files_are_part_of_the_identity(changed, file):
    path = changed("bert")
    before = encoder_hash(path)
    assert encoder_hash(spoil(path, file, {})) != before
