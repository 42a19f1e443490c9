"""The rules of a tokenizer.json with SentencePiece's Unigram."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from fastflow.errors import FastflowError
from fastflow.kernels import _cpu
from fastflow.kernels.tokens import Step, Token, Unigram, UnigramRules, Vocabulary
from fastflow.late import late
from fastflow.model.tokenizer.files import GROWTH, lowercase_first, measure_growth
from fastflow.model.tokenizer.parts import check_tree, is_a, kind, read_ends
from fastflow.values import panics, reason

PLAIN: dict[str, int] = dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD", "StripAccents"), _cpu.KEPT) | {
    "Lowercase": _cpu.LOWERED
}
MARK = "\u2581"
SPACES = {"Regex": " {2,}"}


class Normalizer:
    """All steps of a normalizer, by the library."""

    def __init__(self, rule: Any, lower: bool) -> None:
        self._rule, self._lower = rule or {"type": "Sequence", "normalizers": []}, lower

    @late
    def _library(self) -> Any:
        from tokenizers import Tokenizer, models

        tree = json.loads(Tokenizer(models.WordLevel({"": 0}, unk_token="")).to_str())
        library = Tokenizer.from_str(json.dumps(tree | {"normalizer": self._rule}))
        if self._lower:
            lowercase_first(library)
        return library.normalizer

    def __call__(self, text: str) -> str:
        try:
            with panics():
                return str(self._library.normalize_str(text))
        except Exception as error:
            raise FastflowError(f"tokenizer.json, field normalizer: cannot take a text: {reason(error)}") from error


def read_rules(tree: Any, lower: bool) -> tuple[UnigramRules, Normalizer]:
    """Read the rules of ``tree``; raise ValueError for one that is not compiled."""
    added, model, decoder = check_tree(tree), tree["model"], tree["decoder"]
    if is_a(model, dict) and model.get("byte_fallback") is False:
        model = {name: value for name, value in model.items() if name != "byte_fallback"}
    kind(model, "model", "Unigram", unk_id=int, vocab=list)
    if decoder is not None:
        _read_metaspace(decoder, "decoder")
    for token in added:
        if token["single_word"] or token["rstrip"]:
            raise ValueError(f"its added token {token['content']!r:.40} is a single word or takes the spaces after it")
    tokens = [Token(each["content"], each["id"], each["lstrip"], each["normalized"]) for each in added]
    steps = _read_steps(tree["normalizer"])
    if measure_growth(tree["normalizer"]) > GROWTH:
        raise ValueError(f"its normalizer can make a text over {GROWTH} times longer")
    if lower and Step(_cpu.LOWERED) not in steps:
        steps.insert(0, Step(_cpu.LOWERED))
    spaced = _read_splitter(tree["pre_tokenizer"])
    if spaced and steps[-1:] == [Step(_cpu.JOINED, b"  ", b" ")]:
        steps.pop()  # white space ends words
    rules = UnigramRules(tuple(steps), spaced, model["unk_id"], tuple(tokens), *read_ends(tree["post_processor"]))
    return rules, Normalizer(tree["normalizer"], lower)


def _read_steps(rule: Any) -> list[Step]:
    name = rule.get("type") if is_a(rule, dict) else None
    if rule is None:
        return []
    if name == "Sequence":
        kind(rule, "normalizer", "Sequence", normalizers=list)
        return [step for part in rule["normalizers"] for step in _read_steps(part)]
    if name in PLAIN:
        kind(rule, "normalizer", name)
        return [Step(PLAIN[name])]
    if name == "Strip":
        kind(rule, "normalizer", "Strip", strip_left=bool, strip_right=bool)
        if rule["strip_left"] or not rule["strip_right"]:
            raise ValueError("its normalizer strips another side than the right one")
        return [Step(_cpu.STRIPPED)]
    if name == "Replace":
        kind(rule, "normalizer", "Replace", pattern=dict, content=str)
        pattern, content = rule["pattern"], rule["content"].encode()
        if pattern == SPACES:
            return [Step(_cpu.JOINED, b"  ", content)]
        if list(pattern) == ["String"] and is_a(pattern["String"], str) and pattern["String"]:
            return [Step(_cpu.REPLACED, pattern["String"].encode(), content)]
        raise ValueError("its normalizer replaces another pattern than a text or runs of spaces")
    kind(rule, "normalizer", "Precompiled", precompiled_charsmap=str)
    data = b64decode(rule["precompiled_charsmap"], validate=True)
    size = int.from_bytes(data[:4], "little") // 4 * 4
    units, texts = data[4 : 4 + size], data[4 + size :]
    if not 0 < size == len(units) or b64encode(data).decode() != rule["precompiled_charsmap"]:
        raise ValueError("its precompiled_charsmap is cut short")
    texts.decode()
    return [Step(_cpu.MAPPED, units, texts + b"\0")]


def _read_splitter(rule: Any) -> bool:
    """Return whether white space ends a word, before Metaspace."""
    parts = [rule]
    if is_a(rule, dict) and rule.get("type") == "Sequence":
        kind(rule, "pre_tokenizer", "Sequence", pretokenizers=list)
        parts = rule["pretokenizers"]
    spaced = parts[:1] == [{"type": "WhitespaceSplit"}]
    if len(parts) != 1 + spaced:
        raise ValueError("its pre_tokenizer has other parts than WhitespaceSplit and Metaspace")
    _read_metaspace(parts[-1], "pre_tokenizer")
    return spaced


def _read_metaspace(rule: Any, place: str) -> None:
    usual = {"str_rep": MARK, "add_prefix_space": True, "prepend_scheme": "always", "split": True}
    found = usual | rule if is_a(rule, dict) else rule
    kind(found, place, "Metaspace", replacement=str, str_rep=str, add_prefix_space=bool, prepend_scheme=str, split=bool)
    if found != {"type": "Metaspace", "replacement": MARK} | usual:
        raise ValueError(f"its {place} is not a usual Metaspace")


def compile_rules(
    rules: UnigramRules, normalizer: Normalizer, vocabulary: Vocabulary
) -> tuple[Unigram, dict[str, int], int | None]:
    """Return the tokenizer, added tokens that the pieces lack, and the unknown id."""
    new: dict[str, int] = {}
    for token in rules.added:
        wanted = vocabulary.get(token.content)
        if wanted is None:
            wanted = new[token.content] = max(len(vocabulary), 1 + max(new.values(), default=0))
        if token.id != wanted:
            raise ValueError(f"its added token {token.content!r:.40} has another id than the library gives it")
    return Unigram(vocabulary, rules, normalizer), new, rules.unknown
