"""The rules of a tokenizer.json with SentencePiece's Unigram."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from fastflow.errors import FastflowError
from fastflow.kernels import _cpu
from fastflow.kernels.tokens import Pieces, Step, Token, Unigram, UnigramRules
from fastflow.late import late
from fastflow.model.tokenizer.files import GROWTH, lowercase_first, measure_growth
from fastflow.model.tokenizer.parts import check_tree, is_a, kind, read_ends
from fastflow.values import panics, reason

PLAIN = {
    **{"NFC": _cpu.COMPOSED, "NFKC": _cpu.COMPOSED, "NFD": _cpu.DECOMPOSED, "NFKD": _cpu.DECOMPOSED},
    **{"Lowercase": _cpu.LOWERED, "StripAccents": _cpu.UNMARKED},
}
SCHEMES = {"never": _cpu.NOWHERE, "first": _cpu.AT_START, "always": _cpu.EVERYWHERE}
MARK = "\u2581"
SPACES = {"Regex": " {2,}"}


class Normalizer:
    """All steps of a normalizer, by the library."""

    def __init__(self, rule: Any, lower: bool) -> None:
        self._rule, self._lower = rule, lower

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
    fallback = {"byte_fallback": bool} if is_a(model, dict) and "byte_fallback" in model else {}
    kind(model, "model", "Unigram", unk_id=int, vocab=list, **fallback)
    if decoder is not None:
        _read_metaspace(decoder, "decoder")
    for token in added:
        if token["single_word"]:
            raise ValueError(f"its added token {token['content']!r:.40} is a single word")
    tokens = [Token(each["content"], each["id"], each["lstrip"], each["rstrip"], each["normalized"]) for each in added]
    steps = _read_steps(tree["normalizer"])
    if measure_growth(tree["normalizer"]) > GROWTH:
        raise ValueError(f"its normalizer can make a text over {GROWTH} times longer")
    if lower and Step(_cpu.LOWERED) not in steps:
        steps.insert(0, Step(_cpu.LOWERED))
    words, marked, prefixed, splits = _read_splitter(tree["pre_tokenizer"])
    rules = UnigramRules(
        tuple(steps),
        words,
        marked,
        prefixed,
        splits,
        model["unk_id"],
        model.get("byte_fallback", False),
        tuple(tokens),
        *read_ends(tree["post_processor"]),
    )
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
        return [Step(_cpu.STRIPPED, left=rule["strip_left"], right=rule["strip_right"])]
    if name == "Replace":
        kind(rule, "normalizer", "Replace", pattern=dict, content=str)
        pattern, content = rule["pattern"], rule["content"].encode()
        if pattern == SPACES:
            return [Step(_cpu.JOINED, b"", content)]
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


def _read_splitter(rule: Any) -> tuple[bool, bool, int, bool]:
    """Return (words, marked, prefixed, splits) as UnigramRules has them."""
    if rule is None:
        return False, False, _cpu.NOWHERE, False
    parts = [rule]
    if is_a(rule, dict) and rule.get("type") == "Sequence":
        kind(rule, "pre_tokenizer", "Sequence", pretokenizers=list)
        parts = rule["pretokenizers"]
    words = bool(parts) and parts[0] == {"type": "WhitespaceSplit"}
    if len(parts) == words:
        return words, False, _cpu.NOWHERE, False
    if len(parts) > 1 + words:
        raise ValueError("its pre_tokenizer has more parts than WhitespaceSplit and Metaspace")
    return words, True, *_read_metaspace(parts[-1], "pre_tokenizer")


def _read_metaspace(rule: Any, place: str) -> tuple[int, bool]:
    usual = {"str_rep": MARK, "add_prefix_space": True, "prepend_scheme": "always", "split": True}
    found = usual | rule if is_a(rule, dict) else rule
    kind(found, place, "Metaspace", replacement=str, str_rep=str, add_prefix_space=bool, prepend_scheme=str, split=bool)
    scheme = found["prepend_scheme"]
    if found["replacement"] != MARK or scheme not in SCHEMES or not (found["add_prefix_space"] or scheme == "never"):
        raise ValueError(f"its {place} is not a usual Metaspace")
    return SCHEMES[scheme], found["split"]


def compile_rules(
    rules: UnigramRules, normalizer: Normalizer, pieces: Pieces
) -> tuple[Unigram, dict[str, int], int | None]:
    """Return the tokenizer, added tokens that the pieces lack, and the unknown id."""
    new: dict[str, int] = {}
    for token in rules.added:
        wanted = pieces.get(token.content)
        if wanted is None:
            wanted = new[token.content] = max(len(pieces), 1 + max(new.values(), default=0))
        if token.id != wanted:
            raise ValueError(f"its added token {token.content!r:.40} has another id than the library gives it")
    return Unigram(pieces, rules, normalizer), new, rules.unknown
