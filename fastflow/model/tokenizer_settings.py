"""What the files next to tokenizer.json change in it, as transformers 4.57 and 5.23 open a directory.

tokenizer_config.json    the class, and its arguments: normalization, special tokens, sides of truncation and padding
special_tokens_map.json  special tokens; added_tokens.json: added ones. They count if tokenizer_config.json has no
                         added_tokens_decoder

Release 5 builds a class's own tokenizer from the vocabulary in tokenizer.json; release 4 changes parts of the file's.
``settle`` makes the changes on which both agree, and refuses a directory that they read differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.errors import FastflowError
from fastflow.values import is_whole, read_object, short

CONFIG, MAP, ADDED, TOKENIZER = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json",
)  # fmt: skip
FILES = (CONFIG, MAP, ADDED)
WORDPIECE = ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert", "LayoutLM", "MPNet")
BYTES, PIECES = ("Roberta",), ("XLMRoberta", "Camembert")
CLASSES = {name.lower(): name for name in (*WORDPIECE, *BYTES, *PIECES)} | {"xlm-roberta": "XLMRoberta"}
BERT = {
    **{"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
}
FAIRSEQ = {
    **{"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"},
    **{"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
}
SPECIAL = tuple(FAIRSEQ)  # the fields that name a special token
NAMED: dict[str, dict[str, str]] = {  # class: the special tokens that no file needs to name
    **dict.fromkeys(WORDPIECE, BERT),
    **dict.fromkeys((*BYTES, *PIECES), FAIRSEQ),
    "MPNet": FAIRSEQ | {"unk_token": "[UNK]"},
}
SENTENCEPIECE = {  # the rules of tokenizer.json that a class of PIECES may have
    "normalizer": {"Precompiled", "Replace", "Strip"}, "pre_tokenizer": {"WhitespaceSplit", "Metaspace"},
}  # fmt: skip
LISTS = ("additional_special_tokens", "extra_special_tokens")
SPACES = ("single_word", "lstrip", "rstrip")
FLAGS = (*SPACES, "normalized", "special")
NORMALIZER = {"lowercase": "do_lower_case", "strip_accents": "strip_accents"}
CHINESE = {"handle_chinese_chars": "tokenize_chinese_chars"}
ONLY = {"truncation_side": "right", "padding_side": "right", "split_special_tokens": False, "tokenizer_file": None}
DIFFER = "releases of transformers differ over it"
KEEP = (
    "save the directory again with AutoTokenizer, or write the tokenizer_class PreTrainedTokenizerFast into "
    "tokenizer_config.json to keep tokenizer.json as it is"
)

Token = dict[str, Any]  # content and FLAGS, and the id if it has one


class Special(NamedTuple):
    """A special token, and the field and file that name it; of a class's default the file is empty."""

    field: str
    file: str
    token: Token


class Settings(NamedTuple):
    """The class that opens a directory's tokenizer, a key of NAMED, "" for one that takes tokenizer.json as it is.

    ``added``: the tokens of added_tokens_decoder or added_tokens.json, in the order of their ids. ``vocabulary``: the
    rows of the encoder's table, None if config.json does not say.
    """

    directory: Path
    vocabulary: int | None
    kind: str
    fields: dict[str, Any]
    decoder: bool  # whether there is an added_tokens_decoder
    added: list[Token]
    special: list[Special]

    def refuse(self, name: str, said: str, file: str = CONFIG) -> FastflowError:
        """The error for a field."""
        place = f", field {name}" if name else ""
        return FastflowError(f"{self.directory / file}{place}: {said}")

    def named(self, field: str) -> str:
        """The content of the special token that ``field`` names, "" for null."""
        return next((each.token["content"] for each in self.special if each.field == field), "")

    def source(self, content: str) -> tuple[str, str]:
        """The field and the file that add a token."""
        if any(token["content"] == content for token in self.added):
            return ("added_tokens_decoder", CONFIG) if self.decoder else ("", ADDED)
        return next((each.field, each.file) for each in self.special if each.token["content"] == content)


class Whole(NamedTuple):
    """What ``settle`` looks at of a tokenizer without its vocabulary: tokenizer.json's parts, and answers about it.

    ``ends``: the ids that a text gets at its ends; ``id_of``: content -> id, None if the vocabulary lacks it.
    """

    tree: dict[str, Any]
    ends: tuple[int, ...]
    id_of: Callable[[str], int | None]


def read_settings(directory: Path) -> Settings:
    """The settings of a directory; raises a FastflowError that names a field that is odd or that is not obeyed."""
    fields, config = (_read(directory / name) for name in (CONFIG, "config.json"))
    name = fields.get("tokenizer_class") or config.get("tokenizer_class") or ""
    kind = re.sub("Tokenizer(Fast)?$", "", name) if isinstance(name, str) else ""
    kind = kind or CLASSES.get(str(config.get("model_type")), "")
    rows = config.get("vocab_size")
    kind = kind if kind in NAMED else ""
    decoder = "added_tokens_decoder" in fields
    out = Settings(directory, rows if is_whole(rows, 1) else None, kind, fields, decoder, [], [])
    _check_fields(out)
    files = [(CONFIG, fields)] if out.decoder else [(MAP, _read(directory / MAP)), (CONFIG, fields)]
    seen: set[str] = set()
    for file, found in files:
        out.special.extend(each for each in _special_tokens(out, file, found) if each.field not in seen)
        seen |= found.keys() - set(LISTS)
    defaults = {field: content for field, content in NAMED.get(out.kind, {}).items() if field not in seen}
    out.special.extend(Special(field, "", _plain(out, field, content)) for field, content in defaults.items())
    out.added.extend(_added_tokens(out))
    return out


def _json(value: Any) -> str:
    return short(value) if isinstance(value, dict) else json.dumps(value)


def _read(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _check_fields(settings: Settings) -> None:
    fields = settings.fields
    for name, usual in ONLY.items():
        if fields.get(name, usual) != usual:
            raise settings.refuse(name, f"only {_json(usual)} is supported, not {short(fields[name])}")
    inputs = fields.get("model_input_names", ["attention_mask"])
    if not isinstance(inputs, list) or "attention_mask" not in inputs:
        raise settings.refuse(
            "model_input_names", "must have attention_mask, or padding changes the vectors of a batch"
        )
    for name in (*NORMALIZER.values(), *CHINESE.values(), "add_prefix_space"):
        value = fields.get(name, True)
        if not isinstance(value, bool) and not (name == "strip_accents" and value is None):
            raise settings.refuse(name, f"must be true or false, not {short(value)}")


def _special_tokens(settings: Settings, file: str, found: dict[str, Any]) -> Iterator[Special]:
    for field, value in found.items():
        if value is None:
            continue
        if field in LISTS:
            values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        elif field in SPECIAL or (field.endswith("_token") and isinstance(value, str | dict)):
            values = [value]
        else:
            continue
        for each in values:
            token = _plain(settings, field, each) if isinstance(each, str) else _token(settings, field, each, file)
            yield Special(field, file, token | {"special": True})


def _plain(settings: Settings, field: str, content: str) -> Token:
    """A special token of which only the content is known; the mask of some classes takes the space before it."""
    strips = field == "mask_token" and settings.kind in (*PIECES, "MPNet")
    return dict.fromkeys(FLAGS, False) | {"lstrip": strips, "special": True, "content": content}


def _token(settings: Settings, field: str, value: Any, file: str) -> Token:
    found = value if isinstance(value, dict) else {}
    special = file == MAP or found.get("special") is True
    flags = dict.fromkeys(SPACES, False) | {"normalized": not special, "special": special}
    token = {"content": found.get("content")} | flags | {flag: found[flag] for flag in FLAGS if flag in found}
    if not isinstance(token["content"], str) or not all(isinstance(token[flag], bool) for flag in FLAGS):
        raise settings.refuse(field, f"must be a token, not {short(value)}", file)
    return token


def _added_tokens(settings: Settings) -> list[Token]:
    special = {each.token["content"] for each in settings.special}
    if not settings.decoder:
        found = _read(settings.directory / ADDED)
        if odd := [number for number in found.values() if type(number) is not int]:
            raise settings.refuse("", f"must be an object of token ids, not {short(odd[0])}", ADDED)
        kinds = {True: _plain(settings, "", ""), False: dict.fromkeys(FLAGS, False) | {"normalized": True}}
        return [kinds[content in special] | {"content": content} for content in sorted(found, key=found.__getitem__)]
    field = "added_tokens_decoder"
    found = settings.fields[field]
    if not isinstance(found, dict) or not all(number.isdecimal() for number in found):
        raise settings.refuse(field, f"must be an object of tokens by id, not {short(found)}")
    tokens = [_token(settings, field, found[number], CONFIG) for number in sorted(found, key=int)]
    return [token | {"special": token["special"] or token["content"] in special} for token in tokens]


def settle(settings: Settings, found: Whole) -> dict[str, Any]:
    """``found.tree`` as transformers changes it; an added token without an ``id`` is in no vocabulary yet.

    Raises a FastflowError that names the field over which releases of transformers differ.
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


def _settle_added(settings: Settings, found: Whole) -> list[Token]:
    """The added tokens of tokenizer.json as others change them, and after them the others."""
    out = {token["content"]: token for token in found.tree["added_tokens"]}
    said = {token["content"]: token for token in settings.added}
    again = [{"id": None} | each.token for each in settings.special]  # release 5 adds these itself
    for content in out if settings.kind and settings.decoder else ():
        if content not in said and out[content] | {"id": None} not in again:
            said_of = f"lacks {short(content)}, which tokenizer.json adds: {DIFFER}; {KEEP}"
            raise settings.refuse("added_tokens_decoder", said_of)
    out |= {content: _with_id(token, found) for content, token in said.items()}
    for field, file, token in settings.special:
        content = token["content"]
        if content in out or (not file and found.id_of(content) is None):  # no text has a default of no vocabulary
            continue
        if field not in (*SPECIAL, *LISTS) or (field == "mask_token" and settings.kind in BYTES):
            said_of = f"is {short(content)}, which the added_tokens of tokenizer.json lack: {DIFFER}"
            raise settings.refuse(field, said_of, file or CONFIG)
        out[content] = _with_id(token, found)
    return list(out.values())


def _with_id(token: Token, found: Whole) -> Token:
    number = found.id_of(token["content"])
    return token if number is None else {"id": number} | token


def _check_ends(settings: Settings, found: Whole, fields: tuple[str, str]) -> None:
    """Raise unless a text's ends are the tokens that the fields name."""
    for field, number in zip(fields, (found.ends[:1], found.ends[1:]), strict=True):
        content = settings.named(field)
        if number != (found.id_of(content),):
            raise settings.refuse(
                field, f"is {short(content)}, and the post_processor of tokenizer.json has another token; {KEEP}"
            )


def _settle_normalizer(settings: Settings, found: Whole) -> dict[str, Any]:
    tree, fields = found.tree, settings.fields
    model, normalizer = tree["model"], tree["normalizer"] or {}
    _check_form(settings, {
        "model.type": (model["type"], "WordPiece"),
        "model.continuing_subword_prefix": (model.get("continuing_subword_prefix"), "##"),
        "model.max_input_chars_per_word": (model.get("max_input_chars_per_word"), 100),
        "model.unk_token": (model.get("unk_token"), settings.named("unk_token")),
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


def _check_pieces(settings: Settings, found: Whole) -> None:
    """Raise for a tokenizer.json that release 5 would not build as it is, but for spaces at the ends of a text."""
    _check_ends(settings, found, ("bos_token", "eos_token"))
    if settings.fields.get("add_prefix_space") is False:
        raise settings.refuse("add_prefix_space", f"must be true: {DIFFER}")
    if (unknown := settings.named("unk_token")) not in {token["content"] for token in found.tree["added_tokens"]}:
        raise settings.refuse(
            "unk_token", f"is {short(unknown)}, which the added_tokens of tokenizer.json lack: {DIFFER}"
        )
    number = 3 if settings.kind == "XLMRoberta" else found.id_of(unknown)  # in its code, whatever the file has
    if found.tree["model"].get("unk_id") != number:
        said = f"must be {number} for a {settings.kind}Tokenizer: {DIFFER}; {KEEP}"
        raise settings.refuse("model.unk_id", said, TOKENIZER)
    rules = {part: _rules(found.tree[part], part) for part in SENTENCEPIECE}
    splits = {"Metaspace"} <= rules["pre_tokenizer"] and (
        "WhitespaceSplit" in rules["pre_tokenizer"] or "Replace" in rules["normalizer"]
    )
    for part, known in SENTENCEPIECE.items():
        if not rules[part] <= known or (part == "pre_tokenizer" and not splits):
            said = f"must be what a {settings.kind}Tokenizer has, {' and '.join(sorted(known))}: {DIFFER}; {KEEP}"
            raise settings.refuse(part, said, TOKENIZER)


def _rules(rule: dict[str, Any] | None, part: str) -> set[str]:
    """The types of a normalizer or a pre_tokenizer, or of its parts."""
    parts = (rule or {}).get(f"{part.replace('_', '')}s", [rule] if rule else [])
    return {each["type"] for each in parts}


def _check_form(settings: Settings, form: dict[str, tuple[Any, Any]]) -> None:
    """Raise for a part of tokenizer.json that is not the class's own: release 5 puts its own there."""
    for field, (found, own) in form.items():
        if found != own:
            said = f"must be {_json(own)} for a {settings.kind}Tokenizer, not {_json(found)}; {KEEP}"
            raise settings.refuse(field, said, TOKENIZER)
