"""The rules of a tokenizer.json with WordPiece."""

from __future__ import annotations

from typing import Any

from fastflow.kernels.tokens import Rules, Vocabulary, WordPiece
from fastflow.model.tokenizer.parts import check_tree, is_a, kind, read_ends

NORMALIZER = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")


def read_rules(tree: Any, lower: bool) -> tuple[Rules]:
    """Read the rules of ``tree``; raise ValueError for one that is not compiled."""
    added = check_tree(tree)
    model, normalizer = tree["model"], tree["normalizer"]
    names = {"unk_token": str, "continuing_subword_prefix": str, "max_input_chars_per_word": int, "vocab": dict}
    kind(model, "model", "WordPiece", **names)
    if tree["decoder"] is not None:
        kind(tree["decoder"], "decoder", "WordPiece", prefix=str, cleanup=bool)
    kind(tree["pre_tokenizer"], "pre_tokenizer", "BertPreTokenizer")
    kind(normalizer, "normalizer", "BertNormalizer", **dict.fromkeys(NORMALIZER, bool) | {"strip_accents": None})
    strip = normalizer["lowercase"] if normalizer["strip_accents"] is None else normalizer["strip_accents"]
    if model["vocab"] or model["continuing_subword_prefix"] != "##" or not is_a(strip, bool):
        raise ValueError("its prefix or strip_accents is not a usual one")
    for token in added:
        if token["normalized"] != token["single_word"]:  # lstrip and rstrip only take spaces
            raise ValueError(f"its added token {token['content']!r:.40} is normalized or a single word, and not both")
        if token["single_word"] and (token["special"] or token["lstrip"] or token["rstrip"]):
            raise ValueError(f"its added word {token['content']!r:.40} is special, or takes spaces")
    before, after = read_ends(tree["post_processor"])
    steps = (normalizer["clean_text"], normalizer["handle_chinese_chars"], strip, normalizer["lowercase"], lower)
    whole = tuple((token["content"], token["id"]) for token in added if token["single_word"])
    found = tuple((token["content"], token["id"]) for token in added if not token["single_word"])
    rules = Rules(*steps, model["unk_token"], model["max_input_chars_per_word"], found, before, after, whole)
    return (rules,)


def compile_rules(rules: Rules, vocabulary: Vocabulary) -> tuple[WordPiece, dict[str, int], int | None]:
    """Return the tokenizer, added words that the vocabulary lacks, and the unknown id."""
    for wanted, (content, number) in enumerate(rules.whole, max(len(vocabulary), vocabulary.largest + 1)):
        if number != wanted or vocabulary.get(content) is not None:
            raise ValueError(f"its added word {content!r:.40} has another id than the next one")
    return WordPiece(vocabulary, rules), dict(rules.whole), vocabulary.get(rules.unknown)
