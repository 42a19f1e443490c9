"""The files of a tokenizer: tokenizer.json, or BERT's vocab.txt as the tokenizer.json that it stands for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.errors import FastflowError
from fastflow.values import open_regular, panics, read_object, reason, short

KINDS = ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "SqueezeBert", "LayoutLM")
BERTS = re.compile(rf"({'|'.join(KINDS)})Tokenizer(Fast)?|PreTrainedTokenizerFast|")
OTHERS = {"roformer": "RoFormerTokenizer"}  # model type: its tokenizer, which no file names
USUAL = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece", "do_basic_tokenize": True}
SAVE = "save it with AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"


class NotNativeError(Exception):
    """Why the library has to read a file."""


class Saved(NamedTuple):
    """The content of a tokenizer.json, and the file that errors name."""

    path: Path
    data: bytes

    def library(self) -> Any:
        """The ``tokenizers.Tokenizer``; raises a FastflowError for a file that is none."""
        import tokenizers

        from fastflow.model.bombs import check_rules

        check_rules(self.data, self.path)
        try:
            with panics():
                return tokenizers.Tokenizer.from_buffer(self.data)  # from_file parses a third slower
        except Exception as error:  # the library raises a bare Exception for every malformed file
            raise FastflowError(f"{self.path} cannot be read as a tokenizer: {reason(error)}") from error


def load_tokenizer(directory: Path) -> Any:
    """The ``tokenizers.Tokenizer`` of a Hugging Face directory: tokenizer.json, else BERT's vocab.txt."""
    return read_saved(directory).library()


def read_saved(directory: Path) -> Saved:
    """The tokenizer of a Hugging Face directory; raises a FastflowError if there is none."""
    saved, vocabulary = directory / "tokenizer.json", directory / "vocab.txt"
    if saved.is_file():
        try:
            with open_regular(saved) as handle:
                return Saved(saved, handle.read())
        except OSError as error:
            raise FastflowError(f"{saved} cannot be read: {error.strerror}") from error
    if vocabulary.is_file():
        return Saved(vocabulary, json.dumps(_wordpiece(vocabulary, directory / "tokenizer_config.json")).encode())
    raise FastflowError(f"{directory} has no tokenizer: neither tokenizer.json nor vocab.txt is there; {SAVE}")


def lowercase_first(tokenizer: Any) -> None:
    """Put Lowercase before the normalizer of ``tokenizer`` if none is in it."""
    from tokenizers import normalizers

    found: Any = tokenizer.normalizer
    parts: list[Any] = [] if found is None else [found]
    if isinstance(found, normalizers.Sequence):
        parts = [found[i] for i in range(len(found))]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def _wordpiece(vocabulary: Path, config: Path) -> dict[str, Any]:
    """BERT's tokenizer from a vocabulary of one word piece a line (transformers 5 no longer reads such a file)."""
    settings = read_object(config) if config.is_file() else {}
    _check_kind(settings, vocabulary, config)
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars"):
        value = settings.get(name, True)
        if not isinstance(value, bool) and not (name == "strip_accents" and value is None):
            raise FastflowError(f"{config}, field {name}: must be true or false, not {short(value)}")
    try:
        lines = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # splitlines would cut at U+2028
    except (OSError, ValueError) as error:
        raise FastflowError(f"{vocabulary} cannot be read: {error}") from error
    pieces = {piece: i for i, piece in enumerate(lines)}
    if missing := [piece for piece in ("[UNK]", "[CLS]", "[SEP]") if piece not in pieces]:
        raise FastflowError(f"{vocabulary} lacks {', '.join(missing)}: it is not a BERT vocabulary")
    if "<s>" in pieces and "</s>" in pieces:  # MPNet's, in which [CLS] and [SEP] are words like any other
        raise FastflowError(f"{vocabulary} is not a BERT vocabulary: it has <s> and </s>; {SAVE}")
    return _tree(pieces, settings)


def _check_kind(settings: dict[str, Any], vocabulary: Path, config: Path) -> None:
    """Raise for a vocab.txt that is not of BERT's tokenizer, as those of Japanese, whose words MeCab finds."""
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
    """tokenizer.json as the library saves it."""
    special = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in pieces]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    cls, sep = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
    one, other = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
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
            "pair": [one, other],
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
