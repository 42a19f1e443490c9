"""The files of a tokenizer: tokenizer.json, or BERT's vocab.txt converted to one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.errors import FastflowError
from fastflow.model.encoder import is_static
from fastflow.model.tokenizer.classes import Whole, settle
from fastflow.model.tokenizer.settings import FLAGS, WORDPIECE, TokenizerSettings, read_settings
from fastflow.values import open_regular, panics, read_object, reason, short

BERTS = re.compile(rf"({'|'.join(WORDPIECE[:-1])})Tokenizer(Fast)?|PreTrainedTokenizerFast|")
OTHERS = {"roformer": "RoFormerTokenizer"}
USUAL = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece", "do_basic_tokenize": True}
MODEL = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "max_input_chars_per_word")
UNKNOWN = re.compile(rb'"unk_id"\s*:\s*(\d+)')  # Unigram's unknown id, which its object lacks
CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*("[^"]*")')
RULES = re.compile(r'"(normalizer|pre_tokenizer)"\s*:\s*(?=\{)')
SPELT_OUT = re.compile(r"\\u00[2-7]")  # printable ASCII escaped in JSON, which may hide a key
GROWTH = 1024  # how many times longer rules may make a text; XLM-R's: 132
SAVE = "save it with AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"


class NotNativeError(Exception):
    """The reason why ``tokenizers`` must run a tokenizer, not compiled code."""


class SavedTokenizer(NamedTuple):
    """The bytes of tokenizer.json, the file that errors name, and ``TokenizerSettings``, None for a table."""

    path: Path
    data: bytes
    settings: TokenizerSettings | None

    def library(self) -> Any:
        import tokenizers

        check_rules(self.data, self.path)
        try:
            with panics():
                found = tokenizers.Tokenizer.from_buffer(self.data)  # from_file parses a third slower
                if self.settings is not None:
                    unknown = UNKNOWN.search(self.data)
                    settle_library(self.settings, found, None if unknown is None else int(unknown[1]))
                return found
        except FastflowError:
            raise
        except Exception as error:
            raise FastflowError(f"{self.path} cannot be read as a tokenizer: {reason(error)}") from error


def load_tokenizer(directory: Path) -> Any:
    """Load the ``tokenizers.Tokenizer`` of a directory."""
    return read_saved(directory).library()


def read_saved(directory: Path) -> SavedTokenizer:
    """Read the tokenizer files of a directory."""
    saved, vocabulary = directory / "tokenizer.json", directory / "vocab.txt"
    settings = None if is_static(directory) else read_settings(directory)
    if saved.is_file():
        try:
            with open_regular(saved) as handle:
                return SavedTokenizer(saved, handle.read(), settings)
        except OSError as error:
            raise FastflowError(f"{saved} cannot be read: {error.strerror}") from error
    if vocabulary.is_file():
        tree = _wordpiece(vocabulary, directory / "tokenizer_config.json")
        return SavedTokenizer(vocabulary, json.dumps(tree).encode(), settings)
    raise FastflowError(f"{directory} has no tokenizer: neither tokenizer.json nor vocab.txt is there; {SAVE}")


def lowercase_first(tokenizer: Any) -> None:
    """Put Lowercase before the normalizer unless it already contains one."""
    from tokenizers import normalizers

    found: Any = tokenizer.normalizer
    parts: list[Any] = [] if found is None else [found]
    if isinstance(found, normalizers.Sequence):
        parts = [found[i] for i in range(len(found))]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def settle_library(settings: TokenizerSettings, library: Any, unknown: int | None) -> None:
    """Apply ``settings`` to a ``tokenizers.Tokenizer``; remove its limit and padding."""
    parts = {name: _state(getattr(library, name)) for name in ("normalizer", "pre_tokenizer")}
    own = library.get_added_tokens_decoder()
    model = {name: getattr(library.model, name, None) for name in MODEL}
    model |= {"type": type(library.model).__name__, "unk_id": unknown}
    sides = {
        name: found and {"direction": found["direction"].capitalize()}
        for name, found in (("truncation", library.truncation), ("padding", library.padding))
    }
    added = [{"id": i} | {name: getattr(token, name) for name in ("content", *FLAGS)} for i, token in own.items()]
    library.no_padding()
    library.no_truncation()
    ends = tuple(library.encode("", add_special_tokens=True).ids)
    tree = {**parts, **sides, "model": model, "added_tokens": added}
    settled = settle(settings, Whole(tree, ends, library.token_to_id))
    for part, found in parts.items():
        for name, value in (settled[part] or {}).items():
            if found[name] != value:
                setattr(getattr(library, part), name, value)
    _add_tokens(settings, library, [token for token in settled["added_tokens"] if token not in added])


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())


def _add_tokens(settings: TokenizerSettings, library: Any, tokens: list[dict[str, Any]]) -> None:
    from tokenizers import AddedToken

    for token in tokens:
        flags = {flag: token[flag] for flag in FLAGS}
        library.add_tokens([AddedToken(token["content"], **flags)])
        number = library.token_to_id(token["content"])
        if settings.vocabulary is not None and number >= settings.vocabulary:
            field, file = settings.find_source(token["content"])
            said = f"adds {short(token['content'])}, and the encoder's table has only {settings.vocabulary:,} rows"
            raise settings.refuse(field, said, file)


def _wordpiece(vocabulary: Path, config: Path) -> dict[str, Any]:
    settings = read_object(config) if config.is_file() else {}
    _check_kind(settings, vocabulary, config)
    try:
        lines = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # splitlines would cut at U+2028
    except (OSError, ValueError) as error:
        raise FastflowError(f"{vocabulary} cannot be read: {error}") from error
    pieces = {piece: i for i, piece in enumerate(lines)}
    if missing := [piece for piece in ("[UNK]", "[CLS]", "[SEP]") if piece not in pieces]:
        raise FastflowError(f"{vocabulary} lacks {', '.join(missing)}: it is not a BERT vocabulary")
    if "<s>" in pieces and "</s>" in pieces:  # MPNet, in which [CLS] and [SEP] are ordinary words
        raise FastflowError(f"{vocabulary} is not a BERT vocabulary: it has <s> and </s>; {SAVE}")
    return _tree(pieces, settings)


def _check_kind(settings: dict[str, Any], vocabulary: Path, config: Path) -> None:
    encoder = vocabulary.parent / "config.json"
    found = read_object(encoder) if encoder.is_file() else {}
    unnamed = OTHERS.get(str(found.get("model_type")), "")
    name = settings.get("tokenizer_class") or found.get("tokenizer_class") or unnamed
    if not BERTS.fullmatch(str(name)):
        raise FastflowError(
            f"{vocabulary} belongs to a {short(name)}, which is not BERT's: fastflow needs its tokenizer.json"
        )
    for field, usual in USUAL.items():
        if settings.get(field, usual) not in (usual, None):
            raise FastflowError(f"{config}, field {field}: must be {json.dumps(usual)}, not {short(settings[field])}")


def _tree(pieces: dict[str, int], settings: dict[str, Any]) -> dict[str, Any]:
    special = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in pieces]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    cls, sep = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
    one, other = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    last = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": pieces[name], "content": name} | plain for name in sorted(special, key=pieces.__getitem__)
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, one, sep],
            "pair": [cls, one, sep, other, last],
            "special_tokens": {
                name: {"id": name, "ids": [pieces[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": pieces,
        },
    }


def check_rules(data: bytes, path: Path) -> None:
    """Raise if rules of the tokenizer.json ``path`` can make a text grow without bound."""
    _check_charsmap(data, path)
    text = data.decode("utf-8", "replace")
    if SPELT_OUT.search(text):
        text = json.dumps(_parse(text, path))
    for match in RULES.finditer(text):
        try:
            rules, _ = json.JSONDecoder().raw_decode(text, match.end())
            grows = measure_growth(rules)
        except RecursionError:
            raise FastflowError(f"{path} cannot be read as a tokenizer: its JSON is nested too deep") from None
        except ValueError:
            return
        if grows > GROWTH:
            raise FastflowError(
                f"{path}, field {match[1]}: its rules can make a text over {GROWTH} times longer; such a tokenizer is "
                "not loaded"
            )


def _parse(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise FastflowError(f"{path} cannot be read as a tokenizer: its JSON is nested too deep") from None
    except ValueError as error:
        raise FastflowError(f"{path} cannot be read as a tokenizer: {error}") from error


def _check_charsmap(data: bytes, path: Path) -> None:
    """Refuse a map that the library panics at."""
    from base64 import b64decode

    for found in CHARSMAP.finditer(data):
        try:
            charsmap = b64decode(json.loads(found[1]), validate=True)
            size = int.from_bytes(charsmap[:4], "little")
            whole = 4 + size <= len(charsmap)
            charsmap[4 + size // 4 * 4 :].decode()
        except ValueError:
            whole = False
        if not whole:
            raise FastflowError(f"{path} cannot be read as a tokenizer: its precompiled_charsmap is damaged")


def measure_growth(rule: Any) -> float:
    """Return how many times longer a rule can make a text."""
    if not isinstance(rule, dict):
        return 1.0
    kind, out = rule.get("type"), 1.0
    if kind == "Sequence":
        for name in ("normalizers", "pretokenizers"):
            for part in rule[name] if isinstance(rule.get(name), list) else []:
                out = min(out * measure_growth(part), float(2 * GROWTH))
    elif kind == "Replace":
        pattern = rule.get("pattern")
        fixed = _size(pattern.get("String")) if isinstance(pattern, dict) else 0
        content = _size(rule.get("content"))
        out = content / fixed if fixed else 1.0 + content  # a regex may match between any two characters
    elif kind == "Prepend":
        out = 1.0 + _size(rule.get("prepend"))
    elif kind == "ByteLevel":
        out = 2.0
    elif kind == "Precompiled":
        out = float(_longest(rule.get("precompiled_charsmap")))
    return max(1.0, out)


def _size(text: Any) -> int:
    return len(text.encode("utf-8", "replace")) if isinstance(text, str) else 0


def _longest(charsmap: Any) -> int:
    from base64 import b64decode

    try:
        data = b64decode(charsmap, validate=True)
    except (TypeError, ValueError):
        return 1
    return max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))
