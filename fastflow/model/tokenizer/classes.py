"""Changes that transformers' tokenizer class makes to a tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fastflow.model.tokenizer.settings import (
    BYTES,
    CONFIG,
    LISTS,
    PIECES,
    SPECIAL,
    TOKENIZER,
    WORDPIECE,
    Token,
    TokenizerSettings,
    show_json,
)
from fastflow.values import short

SENTENCEPIECE = {
    "normalizer": {"Precompiled", "Replace", "Strip"}, "pre_tokenizer": {"WhitespaceSplit", "Metaspace"},
}  # fmt: skip
DIFFER = "releases of transformers differ over it"
KEEP = (
    "save the directory again with AutoTokenizer, or write the tokenizer_class PreTrainedTokenizerFast into "
    "tokenizer_config.json to keep tokenizer.json as it is"
)


class Whole(NamedTuple):
    """The JSON ``tree`` of a tokenizer without vocabulary.

    ``ends``: special ids added at a text's ends; ``id_of``: a token's content -> id or None.
    """

    tree: dict[str, Any]
    ends: tuple[int, ...]
    id_of: Callable[[str], int | None]


def settle(settings: TokenizerSettings, found: Whole) -> dict[str, Any]:
    """Return ``found.tree`` as transformers changes it; a new added token has no ``id`` yet.

    Raises for a field over which releases of transformers differ.
    """
    for part, field in (("truncation", "truncation_side"), ("padding", "padding_side")):
        side = (found.tree[part] or {}).get("direction", "Right")
        if field not in settings.fields and side != "Right":
            raise settings.refuse(f"{part}.direction", f"only 'Right' is supported, not {short(side)}", TOKENIZER)
    tree = found.tree | {"added_tokens": _settle_added(settings, found)}
    if settings.kind in WORDPIECE:
        return tree | {"normalizer": _settle_normalizer(settings, found)}
    prefix, splitter = settings.fields.get("add_prefix_space"), tree["pre_tokenizer"] or {}
    if settings.kind in BYTES:
        _check_form(settings, {
            "model.type": (tree["model"]["type"], "BPE"),
            "normalizer": (tree["normalizer"], None),
            "pre_tokenizer": (splitter.get("type"), "ByteLevel"),
            "model.end_of_word_suffix": (tree["model"].get("end_of_word_suffix") or "", ""),
            "pre_tokenizer.use_regex": (splitter.get("use_regex", True), True),
        })  # fmt: skip
        _check_ends(settings, found, ("cls_token", "sep_token"))
        return tree | {"pre_tokenizer": splitter | {"add_prefix_space": prefix or False}}
    if settings.kind in PIECES:
        _check_pieces(settings, found)
    elif (own := splitter.get("add_prefix_space")) is not None and own is not (prefix or False):
        raise settings.refuse("add_prefix_space", f"must be {str(own).lower()}, as in tokenizer.json: {DIFFER}")
    return tree


def _settle_added(settings: TokenizerSettings, found: Whole) -> list[Token]:
    out = {token["content"]: token for token in found.tree["added_tokens"]}
    said = {token["content"]: token for token in settings.added}
    again = [{"id": None} | each.token for each in settings.special]
    for content in out if settings.kind and settings.decoder else ():
        if content not in said and out[content] | {"id": None} not in again:
            said_of = f"lacks {short(content)}, which tokenizer.json adds: {DIFFER}; {KEEP}"
            raise settings.refuse("added_tokens_decoder", said_of)
    out |= {content: _add_id(token, found) for content, token in said.items()}
    for field, file, token in settings.special:
        content = token["content"]
        if content in out or (not file and found.id_of(content) is None):  # listed, or a default that no text contains
            continue
        if field not in (*SPECIAL, *LISTS) or (field == "mask_token" and settings.kind in BYTES):
            said_of = f"is {short(content)}, which the added_tokens of tokenizer.json lack: {DIFFER}"
            raise settings.refuse(field, said_of, file or CONFIG)
        out[content] = _add_id(token, found)
    return list(out.values())


def _add_id(token: Token, found: Whole) -> Token:
    number = found.id_of(token["content"])
    return token if number is None else {"id": number} | token


def _check_ends(settings: TokenizerSettings, found: Whole, fields: tuple[str, str]) -> None:
    for field, number in zip(fields, (found.ends[:1], found.ends[1:]), strict=True):
        content = settings.get_content(field)
        if number != (found.id_of(content),):
            raise settings.refuse(
                field, f"is {short(content)}, and the post_processor of tokenizer.json has another token; {KEEP}"
            )


def _settle_normalizer(settings: TokenizerSettings, found: Whole) -> dict[str, Any]:
    tree, fields = found.tree, settings.fields
    model, normalizer = tree["model"], tree["normalizer"] or {}
    _check_form(settings, {
        "model.type": (model["type"], "WordPiece"),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), "##"),
        "model.max_input_chars_per_word": (model.get("max_input_chars_per_word"), 100),
        "model.unk_token": (model.get("unk_token"), settings.get_content("unk_token")),
        "pre_tokenizer": ((tree["pre_tokenizer"] or {}).get("type"), "BertPreTokenizer"),
        "normalizer": (normalizer.get("type"), "BertNormalizer"),
        "normalizer.clean_text": (normalizer.get("clean_text"), True),
    })  # fmt: skip
    _check_ends(settings, found, ("cls_token", "sep_token"))
    chinese = fields.get("tokenize_chinese_chars", True)
    if settings.kind == "MPNet" and chinese is not normalizer["handle_chinese_chars"]:
        raise settings.refuse(
            "tokenize_chinese_chars",
            f"must be {str(not chinese).lower()}, as normalizer.handle_chinese_chars in tokenizer.json: {DIFFER}",
        )
    lower, strip = fields.get("do_lower_case", True), fields.get("strip_accents")
    return normalizer | {"lowercase": lower, "strip_accents": strip, "handle_chinese_chars": chinese}


def _check_pieces(settings: TokenizerSettings, found: Whole) -> None:
    _check_ends(settings, found, ("bos_token", "eos_token"))
    if settings.fields.get("add_prefix_space") is False:
        raise settings.refuse("add_prefix_space", f"must be true: {DIFFER}")
    if (unknown := settings.get_content("unk_token")) not in {token["content"] for token in found.tree["added_tokens"]}:
        raise settings.refuse(
            "unk_token", f"is {short(unknown)}, which the added_tokens of tokenizer.json lack: {DIFFER}"
        )
    number = 3 if settings.kind == "XLMRoberta" else found.id_of(unknown)
    if found.tree["model"].get("unk_id") != number:
        said = f"must be {number} for a {settings.kind}Tokenizer: {DIFFER}; {KEEP}"
        raise settings.refuse("model.unk_id", said, TOKENIZER)
    rules = {part: _list_rules(found.tree[part], part) for part in SENTENCEPIECE}
    splits = {"Metaspace"} <= rules["pre_tokenizer"] and (
        "WhitespaceSplit" in rules["pre_tokenizer"] or "Replace" in rules["normalizer"]
    )
    for part, known in SENTENCEPIECE.items():
        if not rules[part] <= known or (part == "pre_tokenizer" and not splits):
            said = f"must be what a {settings.kind}Tokenizer has, {' and '.join(sorted(known))}: {DIFFER}; {KEEP}"
            raise settings.refuse(part, said, TOKENIZER)


def _list_rules(rule: dict[str, Any] | None, part: str) -> set[str]:
    parts = (rule or {}).get(f"{part.replace('_', '')}s", [rule] if rule else [])
    return {each["type"] for each in parts}


def _check_form(settings: TokenizerSettings, form: dict[str, tuple[Any, Any]]) -> None:
    for field, (found, own) in form.items():
        if found != own:
            said = f"must be {show_json(own)} for a {settings.kind}Tokenizer, not {show_json(found)}; {KEEP}"
            raise settings.refuse(field, said, TOKENIZER)
