"""The files next to tokenizer.json change the ids as transformers lets them, or are refused by the field's name.

tests/across/test_fields.py walks over every field, with vectors; here are the ids of what was seen in the field.
"""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from fastflow.model.artifact import load_model
from fastflow.model.hashing import encoder_hash
from fastflow.model.tokenizer.encode import Tokenizer
from fastflow.model.tokenizer.files import load_tokenizer

from support.builders import VOCABULARY, make_model, make_sentences, vocabulary_only
from support.fields import ADDED, MAP, SETTINGS, TOKENIZER, special
from support.refusals import copy_of, refuses, spoil

TEXTS = ["The Dog SINGS in PARIS", "Élan 東京 dog", "a <mask> dog [MASK] the", "dogruns", " the", "A  dog\tsings", ""]
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
    theirs, library = AutoTokenizer.from_pretrained(path), load_tokenizer(path)
    want = [theirs(text)["input_ids"] for text in TEXTS]
    assert ids(Tokenizer(path, 64)(TEXTS)) == want
    assert [library.encode(text).ids for text in TEXTS] == want


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_obeyed_is_refused(changed, name):
    file, fault, sentence = REFUSED[name]
    refuses(Tokenizer, changed("bert", (file, fault)), sentence, max_length=64)


def test_a_token_is_added_next_to_a_vocab_txt(tmp_path):
    before = ids(Tokenizer(vocabulary_only(tmp_path), 64)(["dogruns"]))
    assert ids(Tokenizer(vocabulary_only(tmp_path, additional_special_tokens=["dog"]), 64)(["dogruns"])) != before


def test_a_saved_model_has_the_tokenizer_of_its_encoder(changed, tmp_path):
    path = changed("bert", (SETTINGS, {"do_lower_case": False}), (MAP, {"additional_special_tokens": ["dog"]}))
    saved = make_model(tmp_path / "model", path, make_sentences(60), "whiten")
    want = ids(Tokenizer(path, 64)(TEXTS))
    assert ids(load_model(saved).tokenizer()(TEXTS)) == want


@pytest.mark.parametrize("file", [MAP, ADDED])
def test_the_files_are_part_of_the_identity(changed, file):
    path = changed("bert")
    before = encoder_hash(path)
    assert encoder_hash(spoil(path, file, {})) != before
