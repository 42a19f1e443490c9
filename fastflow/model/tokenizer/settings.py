"""The files next to tokenizer.json, read as transformers 4.57 and 5.23 read them.

tokenizer_config.json    the class and its arguments
special_tokens_map.json  special tokens; with added_tokens.json, read only without an added_tokens_decoder
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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
SPECIAL = tuple(FAIRSEQ)
NAMED: dict[str, dict[str, str]] = {  # class -> special tokens that it has by default
    **dict.fromkeys(WORDPIECE, BERT),
    **dict.fromkeys((*BYTES, *PIECES), FAIRSEQ),
    "MPNet": FAIRSEQ | {"unk_token": "[UNK]"},
}
LISTS = ("additional_special_tokens", "extra_special_tokens")
SPACES = ("single_word", "lstrip", "rstrip")
FLAGS = (*SPACES, "normalized", "special")
SWITCHES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space")
ONLY = {"truncation_side": "right", "padding_side": "right", "split_special_tokens": False, "tokenizer_file": None}
Token = dict[str, Any]


def show_json(value: Any) -> str:
    """Format a value as JSON for a message."""
    return short(value) if isinstance(value, dict) else json.dumps(value)


class Special(NamedTuple):
    """A special token, and the field and file that name it; file "" for a default of the class."""

    field: str
    file: str
    token: Token


class TokenizerSettings(NamedTuple):
    """Settings of a tokenizer; ``kind``: its class, a key of NAMED, or "" to use tokenizer.json unchanged.

    ``added``: tokens of added_tokens_decoder or added_tokens.json by id. ``vocabulary``: rows of the table, if known.
    """

    directory: Path
    vocabulary: int | None
    kind: str
    fields: dict[str, Any]
    decoder: bool  # whether there is an added_tokens_decoder
    added: list[Token]
    special: list[Special]

    def refuse(self, name: str, said: str, file: str = CONFIG) -> FastflowError:
        place = f", field {name}" if name else ""
        return FastflowError(f"{self.directory / file}{place}: {said}")

    def get_content(self, field: str) -> str:
        return next((each.token["content"] for each in self.special if each.field == field), "")

    def find_source(self, content: str) -> tuple[str, str]:
        if any(token["content"] == content for token in self.added):
            return ("added_tokens_decoder", CONFIG) if self.decoder else ("", ADDED)
        return next((each.field, each.file) for each in self.special if each.token["content"] == content)


def read_settings(directory: Path) -> TokenizerSettings:
    """Read the settings of a directory."""
    fields, config = (_read(directory / name) for name in (CONFIG, "config.json"))
    name = fields.get("tokenizer_class") or config.get("tokenizer_class") or ""
    kind = re.sub("Tokenizer(Fast)?$", "", name) if isinstance(name, str) else ""
    kind = kind or CLASSES.get(str(config.get("model_type")), "")
    rows = config.get("vocab_size")
    kind = kind if kind in NAMED else ""
    decoder = "added_tokens_decoder" in fields
    out = TokenizerSettings(directory, rows if is_whole(rows, 1) else None, kind, fields, decoder, [], [])
    _check_fields(out)
    files = [(CONFIG, fields)] if out.decoder else [(MAP, _read(directory / MAP)), (CONFIG, fields)]
    seen: set[str] = set()
    for file, found in files:
        out.special.extend(each for each in _list_special(out, file, found) if each.field not in seen)
        seen |= found.keys() - set(LISTS)
    defaults = {field: content for field, content in NAMED.get(out.kind, {}).items() if field not in seen}
    out.special.extend(Special(field, "", _make_plain(out, field, content)) for field, content in defaults.items())
    out.added.extend(_read_added(out))
    return out


def _read(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _check_fields(settings: TokenizerSettings) -> None:
    fields = settings.fields
    for name, usual in ONLY.items():
        if fields.get(name, usual) != usual:
            raise settings.refuse(name, f"only {show_json(usual)} is supported, not {short(fields[name])}")
    inputs = fields.get("model_input_names", ["attention_mask"])
    if not isinstance(inputs, list) or "attention_mask" not in inputs:
        raise settings.refuse(
            "model_input_names", "must have attention_mask, or padding changes the vectors of a batch"
        )
    for name in SWITCHES:
        value = fields.get(name, True)
        if not isinstance(value, bool) and not (name == "strip_accents" and value is None):
            raise settings.refuse(name, f"must be true or false, not {short(value)}")


def _list_special(settings: TokenizerSettings, file: str, found: dict[str, Any]) -> Iterator[Special]:
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
            token = (
                _make_plain(settings, field, each)
                if isinstance(each, str)
                else _parse_token(settings, field, each, file)
            )
            yield Special(field, file, token | {"special": True})


def _make_plain(settings: TokenizerSettings, field: str, content: str) -> Token:
    strips = field == "mask_token" and settings.kind in (*PIECES, "MPNet")
    return dict.fromkeys(FLAGS, False) | {"lstrip": strips, "special": True, "content": content}


def _parse_token(settings: TokenizerSettings, field: str, value: Any, file: str) -> Token:
    found = value if isinstance(value, dict) else {}
    special = file == MAP or found.get("special") is True
    flags = dict.fromkeys(SPACES, False) | {"normalized": not special, "special": special}
    token = {"content": found.get("content")} | flags | {flag: found[flag] for flag in FLAGS if flag in found}
    if not isinstance(token["content"], str) or not all(isinstance(token[flag], bool) for flag in FLAGS):
        raise settings.refuse(field, f"must be a token, not {short(value)}", file)
    return token


def _read_added(settings: TokenizerSettings) -> list[Token]:
    special = {each.token["content"] for each in settings.special}
    if not settings.decoder:
        found = _read(settings.directory / ADDED)
        if odd := [number for number in found.values() if type(number) is not int]:
            raise settings.refuse("", f"must be an object of token ids, not {short(odd[0])}", ADDED)
        kinds = {True: _make_plain(settings, "", ""), False: dict.fromkeys(FLAGS, False) | {"normalized": True}}
        return [kinds[content in special] | {"content": content} for content in sorted(found, key=found.__getitem__)]
    field = "added_tokens_decoder"
    found = settings.fields[field]
    if not isinstance(found, dict) or not all(number.isdecimal() for number in found):
        raise settings.refuse(field, f"must be an object of tokens by id, not {short(found)}")
    tokens = [_parse_token(settings, field, found[number], CONFIG) for number in sorted(found, key=int)]
    return [token | {"special": token["special"] or token["content"] in special} for token in tokens]
