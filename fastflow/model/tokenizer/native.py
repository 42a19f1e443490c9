"""Compile the WordPiece or Unigram of a tokenizer.json; ``tokenizers`` runs others, and reports errors."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

from fastflow.errors import FastflowError
from fastflow.kernels import _cpu
from fastflow.kernels.tokens import (
    CompiledTokenizer,
    NormalizerStep,
    Token,
    Unigram,
    UnigramRules,
    Vocabulary,
    WordPiece,
    WordPieceRules,
)
from fastflow.late import late
from fastflow.model.tokenizer.classes import Whole, settle
from fastflow.model.tokenizer.files import GROWTH, NotNativeError, lowercase_first, measure_growth
from fastflow.model.tokenizer.settings import TokenizerSettings
from fastflow.values import panics, reason

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
TYPES = {bool: "true or false", int: "a whole number", str: "a text", list: "a list", dict: "an object"}


def check_tree(tree: Any) -> list[dict[str, Any]]:
    """Raise ValueError unless ``tree`` has the usual fields; return its added tokens."""
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
    fields(
        tree, "tokenizer.json", version=str, truncation=None, padding=None, added_tokens=list, **dict.fromkeys(names)
    )
    if tree["version"] != "1.0":
        raise ValueError("its version is not 1.0")
    _check_limits(tree["truncation"], tree["padding"])
    added: list[dict[str, Any]] = tree["added_tokens"]
    for token in added:
        fields(token, "added token", id=int, content=str, **dict.fromkeys(FLAGS, bool))
    if len({token["content"] for token in added}) < len(added):
        raise ValueError("it adds a token twice")
    return added


def read_ends(processor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids at the start and the end of a text."""
    if processor is None:
        return (), ()
    name = processor.get("type") if isinstance(processor, dict) else None
    if name in ("BertProcessing", "RobertaProcessing"):
        more = {"trim_offsets": bool, "add_prefix_space": bool} if name == "RobertaProcessing" else {}
        kind(processor, "post_processor", name, sep=list, cls=list, **more)
        sep, cls = processor["sep"], processor["cls"]
        if not all(len(each) == 2 and is_a(each[0], str) and is_a(each[1], int) for each in (sep, cls)):
            raise ValueError("its post_processor has no pairs of token and id")
        return (cls[1],), (sep[1],)
    kind(processor, "post_processor", "TemplateProcessing", single=list, pair=list, special_tokens=dict)
    known = {}
    for token, entry in processor["special_tokens"].items():
        fields(entry, "special token", id=str, ids=list, tokens=list)
        sound = all(is_a(each, int) for each in entry["ids"]) and all(is_a(each, str) for each in entry["tokens"])
        if not sound or len(entry["ids"]) != len(entry["tokens"]):
            raise ValueError(f"the ids or tokens of its special token {token!r:.40} are odd")
        known[token] = tuple(entry["ids"])
    single: list[Any] = _template(processor["single"], known)
    _template(processor["pair"], known)
    if [each for each in single if isinstance(each, str)] != ["A"]:
        raise ValueError("its template does not have a text once")
    place = single.index("A")
    return sum(single[:place], ()), sum(single[place + 1 :], ())


def _template(pieces: list[Any], known: dict[str, tuple[int, ...]]) -> list[tuple[int, ...] | str]:
    out: list[tuple[int, ...] | str] = []
    for piece in pieces:
        alone = is_a(piece, dict) and len(piece) == 1
        name, value = next(iter(piece.items())) if alone else ("", {})
        fields(value, "piece of the template", id=str, type_id=int)
        if name == "Sequence" and value["id"] in ("A", "B"):
            out.append(value["id"])
        elif name == "SpecialToken" and value["id"] in known:
            out.append(known[value["id"]])
        else:
            raise ValueError("its template is not known in every piece")
    return out


def _check_limits(truncation: Any, padding: Any) -> None:
    """Refuse truncation and padding that the library refuses, though a Tokenizer replaces them."""
    if isinstance(truncation, dict):
        truncation = {"direction": "Right"} | truncation
    if truncation is not None:
        fields(truncation, "truncation", direction=str, max_length=int, strategy=str, stride=int)
        known = truncation["strategy"] in ("LongestFirst", "OnlyFirst", "OnlySecond")
        if not known or truncation["direction"] != "Right" or truncation["stride"]:
            raise ValueError("its truncation is not a usual one")
    if padding is not None:
        names = {"pad_to_multiple_of": None, "pad_id": int, "pad_type_id": int, "pad_token": str}
        fields(padding, "padding", strategy=None, direction=str, **names)
        strategy, multiple = padding["strategy"], padding["pad_to_multiple_of"]
        fixed = is_a(strategy, dict) and list(strategy) == ["Fixed"] and is_a(strategy["Fixed"], int)
        known = padding["direction"] in ("Left", "Right") and (multiple is None or is_a(multiple, int))
        if not known or not (fixed or strategy == "BatchLongest"):
            raise ValueError("its padding is not a usual one")


def kind(value: Any, place: str, name: str, **types: type | None) -> None:
    """Raise ValueError unless ``value`` is of the type ``name`` with exactly these fields."""
    found = value.get("type") if isinstance(value, dict) else None
    if found != name:
        raise ValueError(f"its {place} is {found if is_a(found, str) else 'none'!s:.40}, not {name}")
    fields(value, place, type=str, **types)


def fields(value: Any, place: str, **types: type | None) -> None:
    """Raise ValueError unless ``value`` has exactly these fields and types; None: any type."""
    if not isinstance(value, dict) or set(value) != set(types):
        raise ValueError(f"the fields of its {place} are not the usual ones")
    for name, wanted in types.items():
        if wanted is not None and not is_a(value[name], wanted):
            raise ValueError(f"the field {name} of its {place} is not {TYPES[wanted]}")


def is_a(value: Any, wanted: type) -> bool:
    """Return whether a JSON value has a type; an int has at most 31 bits."""
    if wanted is int:
        return type(value) is int and 0 <= value < 2**31
    return type(value) is wanted


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


def read_unigram(tree: Any, lower: bool) -> tuple[UnigramRules, Normalizer]:
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
    if lower and NormalizerStep(_cpu.LOWERED) not in steps:
        steps.insert(0, NormalizerStep(_cpu.LOWERED))
    spaced = _read_splitter(tree["pre_tokenizer"])
    if spaced and steps[-1:] == [NormalizerStep(_cpu.JOINED, b"  ", b" ")]:
        steps.pop()  # white space ends words
    rules = UnigramRules(tuple(steps), spaced, model["unk_id"], tuple(tokens), *read_ends(tree["post_processor"]))
    return rules, Normalizer(tree["normalizer"], lower)


def _read_steps(rule: Any) -> list[NormalizerStep]:
    name = rule.get("type") if is_a(rule, dict) else None
    if rule is None:
        return []
    if name == "Sequence":
        kind(rule, "normalizer", "Sequence", normalizers=list)
        return [step for part in rule["normalizers"] for step in _read_steps(part)]
    if name in PLAIN:
        kind(rule, "normalizer", name)
        return [NormalizerStep(PLAIN[name])]
    if name == "Strip":
        kind(rule, "normalizer", "Strip", strip_left=bool, strip_right=bool)
        if rule["strip_left"] or not rule["strip_right"]:
            raise ValueError("its normalizer strips another side than the right one")
        return [NormalizerStep(_cpu.STRIPPED)]
    if name == "Replace":
        kind(rule, "normalizer", "Replace", pattern=dict, content=str)
        pattern, content = rule["pattern"], rule["content"].encode()
        if pattern == SPACES:
            return [NormalizerStep(_cpu.JOINED, b"  ", content)]
        if list(pattern) == ["String"] and is_a(pattern["String"], str) and pattern["String"]:
            return [NormalizerStep(_cpu.REPLACED, pattern["String"].encode(), content)]
        raise ValueError("its normalizer replaces another pattern than a text or runs of spaces")
    kind(rule, "normalizer", "Precompiled", precompiled_charsmap=str)
    data = b64decode(rule["precompiled_charsmap"], validate=True)
    size = int.from_bytes(data[:4], "little") // 4 * 4
    units, texts = data[4 : 4 + size], data[4 + size :]
    if not 0 < size == len(units) or b64encode(data).decode() != rule["precompiled_charsmap"]:
        raise ValueError("its precompiled_charsmap is cut short")
    texts.decode()
    return [NormalizerStep(_cpu.MAPPED, units, texts + b"\0")]


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


def compile_unigram(
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


NORMALIZER = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")


def read_wordpiece(tree: Any, lower: bool) -> tuple[WordPieceRules]:
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
    rules = WordPieceRules(*steps, model["unk_token"], model["max_input_chars_per_word"], found, before, after, whole)
    return (rules,)


def compile_wordpiece(rules: WordPieceRules, vocabulary: Vocabulary) -> tuple[WordPiece, dict[str, int], int | None]:
    """Return the tokenizer, added words that the vocabulary lacks, and the unknown id."""
    for wanted, (content, number) in enumerate(rules.whole, max(len(vocabulary), vocabulary.largest + 1)):
        if number != wanted or vocabulary.get(content) is not None:
            raise ValueError(f"its added word {content!r:.40} has another id than the next one")
    return WordPiece(vocabulary, rules), dict(rules.whole), vocabulary.get(rules.unknown)


KINDS: dict[bool, tuple[Any, Any]] = {
    False: (read_wordpiece, compile_wordpiece),
    True: (read_unigram, compile_unigram),
}  # by whether the vocabulary has scores
KEY, COLON = b'"vocab"', re.compile(rb"\s*:\s*(?=[\[{])")


class Native(NamedTuple):
    """A compiled tokenizer and its properties."""

    tokenizer: CompiledTokenizer
    vocabulary: Vocabulary
    ends: tuple[int, ...]
    special: dict[int, str]
    unknown: int | None
    limit: int | None
    new: dict[str, int]  # added tokens that the vocabulary lacks

    @property
    def size(self) -> int:
        return len(self.vocabulary) + len(self.new)

    @property
    def largest(self) -> int:
        return max([self.vocabulary.largest, *self.new.values()])

    def id_of(self, token: str) -> int | None:
        return self.new.get(token, self.vocabulary.get(token))

    def lengths(self) -> list[int]:
        """Return the numbers of characters of the pieces and added tokens."""
        known = [length for length, count in enumerate(self.vocabulary.lengths) for _ in range(count)]
        return known + [len(token) for token in self.new]


def read_native(data: bytes, lower: bool, settings: TokenizerSettings | None = None) -> Native:
    """Compile a tokenizer.json changed by ``settings``, or raise NotNativeError; ``lower``: lowercase texts first."""
    places = _vocabularies(data)
    if len(places) != 1:
        raise NotNativeError("its model is neither WordPiece nor Unigram")
    try:
        return _read(data, places[0], lower, settings)
    except RecursionError:
        raise NotNativeError("its JSON is nested too deep") from None
    except ValueError as error:
        raise NotNativeError(str(error)) from error


def _read(data: bytes, place: int, lower: bool, settings: TokenizerSettings | None) -> Native:
    vocabulary = Vocabulary(data, place)
    read, compile_rules = KINDS[vocabulary.scored]
    shorter = data[:place] + (b"[]" if vocabulary.scored else b"{}") + data[vocabulary.end :]
    tree = json.loads(shorter.decode(), object_pairs_hook=_once)
    rules, *more = read(tree, lower)
    if settings is not None:
        tree = _settle(settings, tree, rules, vocabulary)
        rules, *more = read(tree, lower)
    tokenizer, new, unknown = compile_rules(rules, *more, vocabulary)
    special = {
        token["id"]: token["content"]
        for token in sorted(tree["added_tokens"], key=lambda token: token["id"])
        if token["special"]
    }
    limit = tree["truncation"] and tree["truncation"]["max_length"]
    return Native(tokenizer, vocabulary, rules.before + rules.after, special, unknown, limit, new)


def _settle(
    settings: TokenizerSettings, tree: Any, rules: WordPieceRules | UnigramRules, vocabulary: Vocabulary
) -> Any:
    known = {token["content"]: token["id"] for token in tree["added_tokens"]}
    settled = settle(
        settings, Whole(tree, rules.before + rules.after, lambda text: known.get(text, vocabulary.get(text)))
    )
    if new := [token["content"] for token in settled["added_tokens"] if "id" not in token]:
        raise ValueError(f"the vocabulary lacks its added token {new[0]!r:.40}")
    return settled


def _vocabularies(data: bytes) -> list[int]:
    places, at = [], data.find(KEY)
    while at >= 0:
        after = COLON.match(data, at + len(KEY))
        if after and data[at - 1 : at] != b"\\":  # a quote inside a string follows a backslash
            places.append(after.end())
        at = data.find(KEY, at + 1)
    return places


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(out := dict(pairs)) < len(pairs):
        raise ValueError("a field comes twice")
    return out
