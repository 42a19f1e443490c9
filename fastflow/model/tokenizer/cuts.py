"""Shorten long texts before tokenization: the library would tokenize a whole text, in 320 times its bytes.

A cut is a place at which a text can be split without a change of its tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from fastflow.errors import FastflowError
from fastflow.late import late

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~"  # without the underscore, which is a letter to other rules
IDEOGRAPHS = "\u4e00-\u9fff"
SPACES = " \t\n\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
CONTROLS = "\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufffd"
ACCENTS = "\u0300-\u036f\ufe00-\ufe0f"
# characters that BERT's rules neither drop nor split at
WORD = (
    "0-9A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0400-\u0481\u048a-\u052f\u05d0-\u05ea\u0621-\u063a\u3041-\u3096"
    "\u30a1-\u30fa\uac00-\ud7a3\U0001f300-\U0001f64f\U0001f680-\U0001f6c5\U0001f910-\U0001f9ff"
)
# letters and digits, without those that join the next character (U+0D4E) or the previous one
LETTERS = r"[^\W\u0d4e\u0e33\u0eb3\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff\uff9e\uff9f\U00010000-\U0010ffff]"
LATIN = "[0-9A-Za-z]"
FORMS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
GRAPHEMES = {*FORMS, "StripAccents", "Nmt", "Precompiled", "BertNormalizer", "Strip"}
MOST = 64
AT_SPACES = {"WhitespaceSplit", "Whitespace", "BertPreTokenizer", "ByteLevel"}

SHARE = 16  # characters tokenized first for each token of the limit; English has 4 to 5
LEAST = 1024
WINDOW = 2**16  # characters read at a time if the first ones have too few tokens
GROW = 4
LONGEST = 2**20
TOGETHER = 2**18
NEAR = (64, 2048)  # numbers of last characters, searched first for a cut


class Cuts(NamedTuple):
    """``at`` matches the empty string at a cut; to replace a match of ``runs`` by its group keeps the tokens."""

    at: re.Pattern[str]
    runs: re.Pattern[str] | None = None


def find_cuts(tokenizer: Any) -> Cuts | None:
    """Return patterns of the cuts for a ``tokenizers.Tokenizer``; None if its rules are unknown."""
    normalizers = _parts(tokenizer.normalizer, "normalizers")
    splitters = _parts(tokenizer.pre_tokenizer, "pretokenizers")
    if not splitters or len(normalizers) > MOST:
        return None
    tokens = tokenizer.get_added_tokens_decoder().values()
    added = [token.content for token in tokens]
    plain = all(re.fullmatch("[!-~]+", each) for each in added) and not any(token.single_word for token in tokens)
    kinds = {each["type"] for each in normalizers}
    if plain and kinds <= {"BertNormalizer", "Lowercase"} and splitters == [{"type": "BertPreTokenizer"}]:
        return _of_bert(tokenizer, normalizers, added)
    return _between_words(tokenizer.normalizer, normalizers, splitters[0], added)


def _of_bert(tokenizer: Any, normalizers: list[dict[str, Any]], added: list[str]) -> Cuts:
    """Cut as BERT's rules split: before spaces, punctuation and ideographs."""
    bert = next((each for each in normalizers if each["type"] == "BertNormalizer"), {})
    ideographs = IDEOGRAPHS if bert.get("handle_chinese_chars") else ""
    at = re.compile(f"(?=[ \\t\\n\\r{re.escape(_between(added))}{ideographs}])")
    if not bert.get("clean_text"):
        return Cuts(at)
    stripped = bert["lowercase"] if bert["strip_accents"] is None else bert["strip_accents"]
    dropped = CONTROLS + (ACCENTS if stripped else "")
    runs = f"([{SPACES}])[{SPACES}]+|([{dropped}])[{dropped}]+"
    longest = getattr(tokenizer.model, "max_input_chars_per_word", None)  # WordPiece maps a longer word to unknown
    if longest and not any(re.search(f"^[{WORD}]|[{WORD}]$|.{{{longest}}}", each) for each in added):
        runs += f"|(?<![{WORD}])([{WORD}]{{{longest + 1}}})[{WORD}]+"
    return Cuts(at, re.compile(runs))


def _between_words(
    normalizer: Any, normalizers: list[dict[str, Any]], splitter: dict[str, Any], added: list[str]
) -> Cuts | None:
    """Cut at a space between two letters, if no added token contains one and letters are normalized singly."""
    kind = splitter["type"]
    if kind == "Metaspace" and splitter.get("split", True):
        breaks = "\n" if _normalize(normalizer, "a\nb") == "a b" else ""
    elif kind in AT_SPACES and splitter.get("use_regex", True):
        breaks = "\n" if _normalize(normalizer, "a\nb") in ("a\nb", "a b") else ""
    else:
        return None
    if not all(map(_is_local, normalizers)) or _normalize(normalizer, "a b") != "a b":
        return None
    letters = next((each for each in (LETTERS, LATIN) if _keeps(normalizer, each)), None)
    both = [*added, *(_normalize(normalizer, each) for each in added)]
    if letters is None or any(re.search(r"\w\s", each) for each in both):
        return None
    at = f"(?<={letters})(?=[ {breaks}]{letters})"
    marks = re.escape(_between(both))
    if kind == "ByteLevel" and {each["type"] for each in normalizers} <= FORMS and marks:
        at += f"|(?<={LATIN})(?=[{marks}])"
    return Cuts(re.compile(at))


def _parts(component: Any, name: str) -> list[dict[str, Any]]:
    if component is None:
        return []

    def flat(settings: dict[str, Any]) -> list[dict[str, Any]]:
        if settings["type"] != "Sequence":
            return [settings]
        return [each for part in settings[name] for each in flat(part)]

    return flat(json.loads(component.__getstate__()))


def _between(added: list[str]) -> str:
    return "".join(mark for mark in PUNCTUATION if not any(mark in each[1:] for each in added))


def _is_local(settings: dict[str, Any]) -> bool:
    if settings["type"] != "Replace":
        return settings["type"] in GRAPHEMES
    content, pattern = settings["content"], settings["pattern"]
    if "String" not in pattern:
        return bool(pattern == {"Regex": " {2,}"} and content == " ")
    return not re.search(r"[\w\s]", pattern["String"]) and content == content.strip() != ""


def _normalize(normalizer: Any, text: str) -> str:
    return text if normalizer is None else normalizer.normalize_str(text)


def _keeps(normalizer: Any, letters: str) -> bool:
    if normalizer is None:
        return True
    every = _every(letters)
    found = _normalize(normalizer, "|".join(every)).split("|")
    return len(found) == len(every) and all(each and not each[-1].isspace() for each in found)


@cache
def _every(letters: str) -> list[str]:
    return re.findall(letters, "".join(map(chr, range(0x10000))))


class LongTexts:
    """Shorten texts of over ``size`` characters, but keep enough for ``max_length`` tokens."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.size = max(LEAST, SHARE * max_length)
        self._tokenizer = tokenizer

    @late
    def _cuts(self) -> Cuts | None:
        return find_cuts(self._tokenizer)

    def together(self, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield ranges (start, stop) of texts with at most TOGETHER characters, or of one text."""
        start = held = 0
        for i, text in enumerate(texts):
            held += len(text)
            if held > TOGETHER and i > start:
                yield start, i
                start, held = i, len(text)
        if texts:
            yield start, len(texts)

    def head(self, text: str) -> str:
        if self._cuts is None and len(text) <= LONGEST:
            return text
        return text[: last(self._cuts, text[: self.size])]

    def enough(self, text: str, is_full: Callable[[str], bool]) -> str:
        """Return a start of ``text`` that ``is_full``, or else all of ``text``; both with runs shortened.

        Raises if LONGEST characters make too few tokens.
        """
        have, tried = "", self.size
        for start in range(0, len(text), WINDOW):
            part = text[start : start + WINDOW]
            have += self._shorten(part)
            if len(have) > LONGEST:
                raise FastflowError(
                    f"a text holds {LONGEST} characters that make fewer tokens than the limit, or that the tokenizer "
                    "cannot split safely: shorten the text"
                )
            if len(have) > tried and start + WINDOW < len(text):
                tried = GROW * len(have)
                if (end := last(self._cuts, have)) and is_full(have[:end]):
                    return have[:end]
        return have

    def _shorten(self, part: str) -> str:
        runs = self._cuts and self._cuts.runs
        return runs.sub(lambda run: run[run.lastindex or 0], part) if runs else part


def last(cuts: Cuts | None, text: str) -> int:
    """Return the position of the last possible cut in ``text``, or 0."""
    if cuts is None:
        return 0
    for near in (*NEAR, len(text)):
        places = [match.start() for match in cuts.at.finditer(text, max(1, len(text) - near))]
        if places:
            return places[-1]
    return 0
