"""Compile the WordPiece of a tokenizer.json; ``tokenizers`` reads files with other rules, and reports errors."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from fastflow.kernels.tokens import Rules, Vocabulary, WordPiece
from fastflow.model.tokenizer.classes import Whole, settle
from fastflow.model.tokenizer.files import NotNativeError
from fastflow.model.tokenizer.settings import Settings

KEY, COLON = b'"vocab"', re.compile(rb"\s*:\s*(?=\{)")
EMPTY = "{}"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
NORMALIZER = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
TYPES = {bool: "true or false", int: "a whole number", str: "a text", list: "a list", dict: "an object"}


class Native(NamedTuple):
    """A compiled tokenizer and its properties."""

    wordpiece: WordPiece
    vocabulary: Vocabulary
    ends: tuple[int, ...]
    special: dict[int, str]
    unknown: int | None
    limit: int | None
    size: int
    largest: int


def read_native(data: bytes, lower: bool, settings: Settings | None = None) -> Native:
    """Compile a tokenizer.json changed by ``settings``, or raise NotNativeError; ``lower``: lowercase texts first."""
    places = _vocabularies(data)
    if len(places) != 1:
        raise NotNativeError("its model is not WordPiece")
    try:
        vocabulary = Vocabulary(data, places[0])
        rest = json.loads(
            (data[: places[0]] + EMPTY.encode() + data[vocabulary.end :]).decode(), object_pairs_hook=_once
        )
        added, rules = _read(rest, lower)
        if settings is not None:
            added, rules = _read(_settle(settings, rest, rules, vocabulary), lower)
        _check_whole(rules.whole, vocabulary)
        special = {
            token["id"]: token["content"] for token in sorted(added, key=lambda token: token["id"]) if token["special"]
        }
        limit = rest["truncation"] and rest["truncation"]["max_length"]
        unknown = vocabulary.get(rules.unknown)
        largest = max([vocabulary.largest, *(number for _, number in rules.whole)])
        size = len(vocabulary) + len(rules.whole)
        wordpiece, ends = WordPiece(vocabulary, rules), rules.before + rules.after
        return Native(wordpiece, vocabulary, ends, special, unknown, limit, size, largest)
    except RecursionError:
        raise NotNativeError("its JSON is nested too deep") from None
    except ValueError as error:
        raise NotNativeError(str(error)) from error


def _settle(settings: Settings, tree: Any, rules: Rules, vocabulary: Vocabulary) -> Any:
    whole = dict(rules.whole)
    settled = settle(
        settings, Whole(tree, rules.before + rules.after, lambda text: whole.get(text, vocabulary.get(text)))
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


def _read(tree: Any, lower: bool) -> tuple[list[dict[str, Any]], Rules]:
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
    fields(
        tree, "tokenizer.json", version=str, truncation=None, padding=None, added_tokens=list, **dict.fromkeys(parts)
    )
    model, normalizer = tree["model"], tree["normalizer"]
    names = {"unk_token": str, "continuing_subword_prefix": str, "max_input_chars_per_word": int, "vocab": dict}
    kind(model, "model", "WordPiece", **names)
    _check_limits(tree["truncation"], tree["padding"])
    if tree["decoder"] is not None:
        kind(tree["decoder"], "decoder", "WordPiece", prefix=str, cleanup=bool)
    kind(tree["pre_tokenizer"], "pre_tokenizer", "BertPreTokenizer")
    kind(normalizer, "normalizer", "BertNormalizer", **dict.fromkeys(NORMALIZER, bool) | {"strip_accents": None})
    strip = normalizer["lowercase"] if normalizer["strip_accents"] is None else normalizer["strip_accents"]
    if (
        tree["version"] != "1.0"
        or model["vocab"]
        or model["continuing_subword_prefix"] != "##"
        or not is_a(strip, bool)
    ):
        raise ValueError("its version, prefix or strip_accents is not a usual one")
    added = tree["added_tokens"]
    for token in added:
        fields(token, "added token", id=int, content=str, **dict.fromkeys(FLAGS, bool))
        if token["normalized"] != token["single_word"]:  # lstrip and rstrip only take spaces
            raise ValueError(f"its added token {token['content']!r:.40} is normalized or a single word, and not both")
        if token["single_word"] and (token["special"] or token["lstrip"] or token["rstrip"]):
            raise ValueError(f"its added word {token['content']!r:.40} is special, or takes spaces")
    before, after = _ends(tree["post_processor"])
    steps = (normalizer["clean_text"], normalizer["handle_chinese_chars"], strip, normalizer["lowercase"], lower)
    if len({token["content"] for token in added}) < len(added):
        raise ValueError("it adds a token twice")
    whole = tuple((token["content"], token["id"]) for token in added if token["single_word"])
    found = tuple((token["content"], token["id"]) for token in added if not token["single_word"])
    return added, Rules(*steps, model["unk_token"], model["max_input_chars_per_word"], found, before, after, whole)


def _check_whole(words: tuple[tuple[str, int], ...], vocabulary: Vocabulary) -> None:
    for wanted, (content, number) in enumerate(words, max(len(vocabulary), vocabulary.largest + 1)):
        if number != wanted or vocabulary.get(content) is not None:
            raise ValueError(f"its added word {content!r:.40} has another id than the next one")


def _ends(processor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
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
        if len(entry["ids"]) != len(entry["tokens"]) or not all(is_a(each, int) for each in entry["ids"]):
            raise ValueError(f"the ids of its special token {token!r:.40} are odd")
        if not all(is_a(each, str) for each in entry["tokens"]):
            raise ValueError(f"the tokens of its special token {token!r:.40} are odd")
        known[token] = tuple(entry["ids"])
    single = _template(processor["single"], known)
    _template(processor["pair"], known)
    if [each for each in single if isinstance(each, str)] != ["A"]:
        raise ValueError("its template does not have a text once")
    place = single.index("A")
    return _join(single[:place]), _join(single[place + 1 :])


def _join(pieces: list[Any]) -> tuple[int, ...]:
    return tuple(i for ids in pieces for i in ids)


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
        if not fixed and strategy != "BatchLongest":
            raise ValueError("its padding is not a usual one")
        if padding["direction"] not in ("Left", "Right") or not (multiple is None or is_a(multiple, int)):
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
