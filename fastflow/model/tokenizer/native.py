"""Compile the WordPiece or Unigram of a tokenizer.json; ``tokenizers`` runs others, and reports errors."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from fastflow.kernels.tokens import Rules, Tokenizer, UnigramRules, Vocabulary
from fastflow.model.tokenizer import wordpiece
from fastflow.model.tokenizer.classes import Whole, settle
from fastflow.model.tokenizer.files import NotNativeError
from fastflow.model.tokenizer.settings import Settings

KEY, COLON = b'"vocab"', re.compile(rb"\s*:\s*(?=[\[{])")


class Native(NamedTuple):
    """A compiled tokenizer and its properties."""

    tokenizer: Tokenizer
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


def read_native(data: bytes, lower: bool, settings: Settings | None = None) -> Native:
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


def _read(data: bytes, place: int, lower: bool, settings: Settings | None) -> Native:
    vocabulary = Vocabulary(data, place)
    kind: Any = wordpiece
    if vocabulary.scored:
        from fastflow.model.tokenizer import unigram

        kind = unigram
    shorter = data[:place] + (b"[]" if vocabulary.scored else b"{}") + data[vocabulary.end :]
    tree = json.loads(shorter.decode(), object_pairs_hook=_once)
    rules, *more = kind.read_rules(tree, lower)
    if settings is not None:
        tree = _settle(settings, tree, rules, vocabulary)
        rules, *more = kind.read_rules(tree, lower)
    tokenizer, new, unknown = kind.compile_rules(rules, *more, vocabulary)
    special = {
        token["id"]: token["content"]
        for token in sorted(tree["added_tokens"], key=lambda token: token["id"])
        if token["special"]
    }
    limit = tree["truncation"] and tree["truncation"]["max_length"]
    return Native(tokenizer, vocabulary, rules.before + rules.after, special, unknown, limit, new)


def _settle(settings: Settings, tree: Any, rules: Rules | UnigramRules, vocabulary: Vocabulary) -> Any:
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
