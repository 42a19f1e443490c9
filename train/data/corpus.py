"""files -> unique texts."""

from __future__ import annotations

import hashlib
import heapq
import random
import re
from collections.abc import Iterable, Iterator, Sequence

from fastflow.errors import FastflowError
from fastflow.files.read.records import Layout
from fastflow.files.read.texts import read_records

BOUNDARY = re.compile(r"(?<=[.!?…])\s+(?![a-z])|(?<=[。！？])(?=.)")  # between sentences, abbreviations aside


def sentences(text: str) -> list[str]:
    """``text`` cut after . ! ? … if no lower-case letter follows, and after their full-width forms."""
    return [part for part in map(str.strip, BOUNDARY.split(text)) if part]


def read_corpus(
    paths: Sequence[str],
    layout: Layout = Layout(),  # noqa: B008 (immutable)
    sample: int | None = None,
    seed: int = 0,
    cut: bool = False,
) -> list[str]:
    """The distinct non-empty texts of ``paths`` in order of first appearance; a pairs file gives both texts of a row.

    ``sample`` keeps that many, drawn uniformly by a reservoir, so that a corpus need not fit in memory; ``cut`` makes
    sentences of texts first.
    """
    return draw(clean(read_texts(paths, layout), cut), ", ".join(paths), sample, seed)


def draw(texts: Iterable[str], named: str, sample: int | None = None, seed: int = 0) -> list[str]:
    """The distinct ones of ``texts`` in order of first appearance, or a sample of ``sample``.

    Raises a FastflowError that begins with ``named`` if there is none.
    """
    distinct = _distinct(texts)
    out = list(distinct) if sample is None else _reservoir(distinct, sample, random.Random(seed))
    if not out:
        raise FastflowError(f"{named}: holds no text")
    return out


def read_texts(paths: Sequence[str], layout: Layout = Layout()) -> Iterator[str]:  # noqa: B008 (immutable)
    """Every text of ``paths`` as it stands there, both of a pair."""
    return (text for path in paths for record in read_records(path, layout) for text in record.texts)


def clean(texts: Iterable[str], cut: bool = False) -> Iterator[str]:
    """``texts`` without surrounding blanks, the empty ones left out, whole or ``cut`` into sentences."""
    for text in texts:
        if text := text.strip():
            yield from sentences(text) if cut else (text,)


def corpus_hash(texts: Sequence[str]) -> str:
    """sha256 over the texts in order, the key of the cache of their embeddings."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def key_of(text: str, seed: int) -> bytes:
    """16 bytes that choose a sample: uniform over distinct texts, equal for equal texts."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16, key=seed.to_bytes(8, "little")).digest()


def pick_by_hash(texts: Iterable[str], count: int, seed: int) -> list[str]:
    """Pick the ``count`` distinct texts with the smallest keys, in the order of their keys."""
    keyed = {key_of(text, seed): text for text in texts}
    return [keyed[key] for key in heapq.nsmallest(count, keyed)]


def _distinct(texts: Iterable[str]) -> Iterator[str]:
    seen: set[bytes] = set()  # digests: 16 bytes a text instead of the text
    for text in texts:
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            yield text


def _reservoir(texts: Iterator[str], size: int, rng: random.Random) -> list[str]:
    """Algorithm R; the kept texts come back in corpus order."""
    kept: list[tuple[int, str]] = []
    for index, text in enumerate(texts):
        if index < size:
            kept.append((index, text))
        elif (slot := rng.randrange(index + 1)) < size:
            kept[slot] = (index, text)
    return [text for _, text in sorted(kept)]
