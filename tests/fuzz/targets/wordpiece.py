"""Texts through the compiled WordPiece or Unigram, its definition and the library: the same ids. Bytes: choices, UTF-8.

The definition is Python, so it is what leads the fuzzer.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import tokenizers
from harness import Choices, Finding

from fastflow.model.locate import UNTUNED
from fastflow.model.tokenizer.native import read_native, read_unigram, read_wordpiece

from support import definitions
from support.unicode import ORDERED
from support.unigrams import (
    MARKED,
    RIGHT,
    SPACES,
    as_bytes,
    make_tree,
    make_xlm,
    metaspace,
    precompiled,
    sequence,
    token,
    train,
)

CHOICES = 3  # bytes of an input that choose the tokenizer and the limit
CASED = {"lowercase": False, "strip_accents": None}
RULES: dict[str, tuple[dict[str, Any], bool]] = {  # name -> (changes of the normalizer, lowercased first)
    "bert": ({}, False),
    "cased": (CASED, False),
    "cased, stripped": (CASED | {"strip_accents": True}, False),
    "lower, accents": ({"strip_accents": False}, False),
    "whole ideographs": ({"handle_chinese_chars": False}, False),
    "unclean": ({"clean_text": False}, False),
    "unclean, cased": (CASED | {"clean_text": False, "handle_chinese_chars": False}, False),
    "unclean, stripped": (CASED | {"clean_text": False, "strip_accents": True}, False),
    "lower first": ({}, True),
    "lower first, cased": (CASED | {"strip_accents": True, "clean_text": False}, True),
}
# not in BERT's vocabulary
WORDS = ("bestseller2", "selfie", "blockchain", "x1y2", "unaffable2", "ö", "ⅳ", "aé", "zz", "q1")
MPNET = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}  # and its mask takes the spaces before it


def make_files() -> dict[str, tuple[bytes, bool]]:
    """Return name -> (tokenizer.json, lowercased first): BERT's by each of RULES, with words, as MPNet's; Unigrams."""
    bert = json.loads((UNTUNED / "0_Transformer" / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = bert["model"]["vocab"]
    for i, mark in enumerate(dict.fromkeys(ORDERED)):  # pieces of marks, or every word with one would be unknown
        vocabulary[f"##{mark}"] = vocabulary.pop(f"[unused{i}]")
    out = {}
    for name, (change, first) in RULES.items():
        tree = bert | {"normalizer": bert["normalizer"] | change}
        out[name] = json.dumps(tree, ensure_ascii=len(out) % 2 == 0).encode(), first
    pieces = bert["model"]["vocab"]
    renumbered = MPNET | {piece: i + len(MPNET) for piece, i in pieces.items()} | {"<mask>": len(pieces) + len(MPNET)}
    token = bert["added_tokens"][0]
    plain = token | {"special": False, "single_word": True, "normalized": True}
    words = [plain | {"content": word, "id": len(pieces) + i} for i, word in enumerate(WORDS)]
    accents = bert["normalizer"] | {"strip_accents": False}
    tree = bert | {"added_tokens": bert["added_tokens"] + words, "normalizer": accents}
    out["words"] = json.dumps(tree).encode(), False
    names = (*MPNET, "<mask>")
    added = [token | {"content": name, "id": renumbered[name], "lstrip": name == "<mask>"} for name in names]
    ends = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True}
    tree = bert | {"added_tokens": added, "post_processor": ends | {"add_prefix_space": False}}
    tree["model"] = bert["model"] | {"vocab": renumbered, "max_input_chars_per_word": 16}
    out["mpnet"] = json.dumps(tree).encode(), False
    return out | make_unigrams()


def make_unigrams() -> dict[str, tuple[bytes, bool]]:
    """Return tokenizers as of XLM-R, T5 and ALBERT."""
    mask = token("<mask>", len(train("nmt_nfkc_cf")[0]), lstrip=True, normalized=True)
    forms = [{"type": name} for name in ("NFKD", "StripAccents", "Lowercase")]
    trees = {
        **{rule: make_xlm(rule) for rule in ("nmt_nfkc", "nfkc_cf")},
        "new": make_tree(train("nfkc")[0], sequence(precompiled("nfkc"), RIGHT, MARKED), metaspace()),
        "albert": make_xlm("nmt_nfkc_cf", normalizer=sequence(*forms, SPACES), added_tokens=[mask]),
        "nfkc": make_xlm("nfkc", normalizer={"type": "NFKC"}),
    }
    return {name: (as_bytes(tree), name == "nfkc") for name, tree in trees.items()}


class Pair:
    """One file, read by the compiled tokenizer and by ``tokenizers``."""

    def __init__(self, data: bytes, lower: bool) -> None:
        native = read_native(data, lower)
        self.native, self.scores = native.tokenizer, native.vocabulary.scores
        self.library = tokenizers.Tokenizer.from_buffer(data)
        if lower:
            both = [tokenizers.normalizers.Lowercase(), self.library.normalizer]
            self.library.normalizer = tokenizers.normalizers.Sequence(both)

    def difference(self, texts: list[str], limit: int, threads: int) -> str:
        """Describe the first text with other ids, length or cut; "" if there is none."""
        self.library.enable_truncation(limit)
        wanted = self.library.encode_batch_fast(texts)
        ids, offsets, cut = self.native.tokenize(texts, limit, threads=threads)
        lengths = np.cumsum([0, *map(len, wanted)])
        same = np.array_equal(offsets, lengths) and ids.tolist() == list(chain.from_iterable(e.ids for e in wanted))
        cuts = [i for i, each in enumerate(wanted) if each.overflowing]
        if same and cuts == cut.tolist():
            return ""
        for i, each in enumerate(wanted):
            found = ids[offsets[i] : offsets[i + 1]].tolist()
            if found != each.ids or bool(each.overflowing) != (i in cut):
                return f"limit {limit}: {texts[i]!r} is {each.ids[:60]}, not {found[:60]}"
        return "the batches differ, and no text does"


FILES = list(make_files().values())


@cache
def made(number: int) -> tuple[Pair, definitions.Tokenizer]:
    data, lower = FILES[number]
    tree = json.loads(data)
    vocabulary = tree["model"]["vocab"]
    tree["model"]["vocab"] = type(vocabulary)()
    if isinstance(vocabulary, list):
        pair = Pair(data, lower)
        pieces = [(piece, score) for (piece, _), score in zip(vocabulary, pair.scores, strict=True)]
        return pair, definitions.Unigram(pieces, *read_unigram(tree, lower))
    return Pair(data, lower), definitions.WordPiece(vocabulary, *read_wordpiece(tree, lower))


def one(data: bytes) -> None:
    choices = Choices(data[:CHOICES])
    pair, definition = made(choices.getrandbits(8) % len(FILES))
    limit, threads = choices.choice((2, 3, 8, 17, 128)), choices.choice((1, 3))
    texts = data[CHOICES:].decode("utf-8", "ignore").split("\0")
    if fault := pair.difference(texts, limit, threads):
        raise Finding(fault)
    found, wanted = pair.native.tokenize(texts, limit, threads=1), definition.tokenize(texts, limit)
    if any(a.tolist() != b.tolist() for a, b in zip(found, wanted, strict=True)):
        raise Finding(f"{texts!r:.300} has other ids by definition")


def seeds() -> list[bytes]:
    texts = (
        "The dog [MASK] sleeps.",
        "\u00c9t\u00e9 \u0130stanbul 42",
        "\u4e2d\u6587 \ud55c\uae00 a\u0301\u0307\u0323",
        "\u2581a  <mask>\uff1cs\uff1e \u0600a\u0301 \ufb01\u0301 \xa9\u200d\u2122\u0301",
        "x" * 300,
    )
    return [bytes([i, 4, 0]) + "\0".join(texts).encode() for i in range(len(FILES))]
