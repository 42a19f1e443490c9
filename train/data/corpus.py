"""Read, cut, clean and sample texts."""

from __future__ import annotations

import hashlib
import heapq
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastflow.errors import FastflowError
from fastflow.files.read import InputFormat, plain
from fastflow.files.read.texts import format_of, read_records, unit_of
from fastflow.train.reporter import refuse

BOUNDARY = re.compile(r"(?<=[.!?…])\s+(?![a-z])|(?<=[。！？])(?=.)")  # between sentences, not after most abbreviations


def cut_sentences(text: str) -> list[str]:
    """Cut after . ! ? … unless a lower-case letter follows, and after their full-width forms."""
    return [part for part in map(str.strip, BOUNDARY.split(text)) if part]


def read_corpus(paths: Sequence[str], sample: int | None = None, seed: int = 0) -> list[str]:
    """Read the distinct texts of ``paths`` as ``draw`` keeps them."""
    return draw(clean(read_texts(paths)), ", ".join(paths), sample, seed)


def draw(texts: Iterable[str], named: str, sample: int | None = None, seed: int = 0) -> list[str]:
    """Keep the distinct texts in order, or ``sample`` drawn at random.

    Raises a FastflowError that names ``named`` for an empty corpus.
    """
    distinct = _drop_repeats(texts)
    out = list(distinct) if sample is None else _sample(distinct, sample, random.Random(seed))
    if not out:
        raise FastflowError(f"{named}: holds no text")
    return out


def read_texts(paths: Sequence[str], layout: InputFormat = InputFormat()) -> Iterator[str]:  # noqa: B008 (immutable)
    """Read every text of ``paths``, both of a pair."""
    return (text for path in paths for record in read_records(path, layout) for text in record.texts)


def clean(texts: Iterable[str], cut: bool = False) -> Iterator[str]:
    """Strip ``texts`` and drop empty ones; ``cut`` cuts them into sentences."""
    for text in texts:
        if text := text.strip():
            yield from cut_sentences(text) if cut else (text,)


def note_groups(rows: Iterable[tuple[str, Any]], cut: bool, groups: dict[bytes, str]) -> Iterator[str]:
    """Yield the texts of ``rows`` (text, group); note each clean text's first group in ``groups`` by ``key_of``."""
    for text, group in rows:
        for part in clean((text,), cut):
            groups.setdefault(key_of(part, 0), str(group))
        yield text


def read_groups(paths: Sequence[str], layout: InputFormat, field: str | None) -> Iterator[tuple[str, Any]]:
    """Read every text of ``paths`` with its group: its file, or the value of ``field``."""
    for path in paths:
        if field is not None and format_of(path, layout.format) == "txt":
            raise refuse("{groups} names a field, and {it} has none: leave it out, and give a file a group", it=path)
        for record in read_records(path, layout if field is None else layout._replace(keep=(field,))):
            group = path if field is None else plain(record.kept[0])
            if group is None or not str(group).strip():
                raise FastflowError(f"{path}, {unit_of(path, layout)} {record.line}: field {field!r} is empty; fill it")
            yield from ((text, group) for text in record.texts)


def corpus_hash(texts: Sequence[str]) -> str:
    """Hash the texts in order."""
    digest = hashlib.sha256()
    for text in texts:
        add_text(digest, text)
    return digest.hexdigest()


def add_text(digest: hashlib._Hash, text: str) -> None:
    """Hash ``text`` and its length."""
    data = text.encode("utf-8", "surrogatepass")
    digest.update(len(data).to_bytes(8, "little") + data)


def key_of(text: str, seed: int) -> bytes:
    """Hash a text to 16 bytes, uniform over distinct texts."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16, key=seed.to_bytes(8, "little")).digest()


def pick_by_hash(texts: Iterable[str], count: int, seed: int) -> list[str]:
    """Pick the ``count`` distinct texts with the smallest keys, in their order."""
    keyed = {key_of(text, seed): text for text in texts}
    return [keyed[key] for key in heapq.nsmallest(count, keyed)]


def _drop_repeats(texts: Iterable[str]) -> Iterator[str]:
    seen: set[bytes] = set()
    for text in texts:
        if (key := key_of(text, 0)) not in seen:
            seen.add(key)
            yield text


def _sample(texts: Iterator[str], size: int, rng: random.Random) -> list[str]:
    kept: list[tuple[int, str]] = []
    for index, text in enumerate(texts):
        if index < size:
            kept.append((index, text))
        elif (slot := rng.randrange(index + 1)) < size:  # reservoir sampling
            kept[slot] = (index, text)
    return [text for _, text in sorted(kept)]
