"""A corpus read in shards by any number of workers: the same bits whatever their number and the order they end in.

A shard is SHARD texts that follow each other. The findings of workers are merged in the order of the shards, and the
sample is chosen by a hash of the text, so neither depends on who computed what, and when.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.stages.pooling import Pooling
from fastflow.train.data.embeddings import Embedder, FrozenEncoder, open_encoder
from fastflow.train.data.moments import BLOCK, Moments
from fastflow.train.data.token_weights import token_counts

SHARD = BLOCK  # texts: a streamed fit takes its statistics in the same blocks, and so comes to the same bits
T = TypeVar("T")
Found = TypeVar("Found", covariant=True)


class Task(Protocol[Found]):
    """Something to do with each shard; it is sent to the workers, each of which opens it once."""

    def open(self) -> Callable[[list[str]], Found]:
        """The function of a shard."""


class Workers(Protocol):
    """``workers(task, shards)`` gives what the task finds in each shard, in the order of the shards."""

    def __call__(self, task: Task[T], shards: Iterator[list[str]]) -> Iterator[T]: ...


def here(task: Task[T], shards: Iterator[list[str]]) -> Iterator[T]:
    """The workers of one process."""
    return map(task.open(), shards)


@dataclass(frozen=True)
class Encoding:
    """An encoder by its name, which each worker opens where it runs; ``pooling`` is the driver's, with its weights."""

    name: str
    pooling_name: str
    max_length: int
    hash: str
    pooling: Pooling
    device: str

    def open(self) -> FrozenEncoder:
        """Raises a FastflowError if the files are not those that the fit was started with."""
        found = open_encoder(self.name, self.pooling_name, self.max_length)
        if found.hash != self.hash:
            raise FastflowError(
                f"the encoder {self.name} has the hash {found.hash} on a worker, and {self.hash} where the fit was "
                "started: give every node the same files"
            )
        return replace(found, pooling=self.pooling)


class Counted(NamedTuple):
    """Of a shard or a corpus: its texts, token counts (V,) if they are asked for, and candidates of the sample."""

    texts: int
    tokens: NDArray[np.int64] | None
    sample: dict[bytes, str]  # key -> text, the smallest keys


@dataclass(frozen=True)
class Counting:
    """The first pass: token counts, and the texts with the smallest keyed hashes."""

    encoding: Encoding
    weighted: bool
    sample: int
    seed: int

    def open(self) -> Callable[[list[str]], Counted]:
        """The function of a shard."""
        encoder = self.encoding.open()

        def count(texts: list[str]) -> Counted:
            tokens = token_counts(encoder, texts) if self.weighted else None
            return Counted(len(texts), tokens, smallest({key_of(t, self.seed): t for t in texts}, self.sample))

        return count


@dataclass(frozen=True)
class Measuring:
    """The second pass: the statistics of the embeddings of a shard."""

    encoding: Encoding

    def open(self) -> Callable[[list[str]], Moments]:
        """The function of a shard."""
        encoder = self.encoding.open()
        embedder = Embedder(encoder, self.encoding.device)
        return lambda texts: Moments(encoder.dim).update(embedder(texts))


@dataclass(frozen=True)
class Embedding:
    """The embeddings (n, D) of the sample."""

    encoding: Encoding

    def open(self) -> Callable[[list[str]], NDArray[np.float32]]:
        """The function of a shard."""
        return Embedder(self.encoding.open(), self.encoding.device)


def key_of(text: str, seed: int) -> bytes:
    """16 bytes that choose a sample: uniform over distinct texts, equal for equal texts."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16, key=seed.to_bytes(8, "little")).digest()


def smallest(keyed: dict[bytes, str], count: int) -> dict[bytes, str]:
    """The ``count`` entries with the smallest keys."""
    return keyed if len(keyed) <= count else {key: keyed[key] for key in heapq.nsmallest(count, keyed)}


def by_hash(texts: Iterable[str], count: int, seed: int) -> list[str]:
    """The ``count`` distinct ``texts`` with the smallest keys, in the order of their keys."""
    return [text for _, text in sorted(smallest({key_of(text, seed): text for text in texts}, count).items())]


class Shards:
    """``texts()`` in shards, as often as they are read; raises if a later reading gives other texts.

    ``sha256`` is over all texts in order, as ``corpus_hash`` has it.
    """

    def __init__(self, texts: Callable[[], Iterable[str]], name: str) -> None:
        self._texts, self._name, self.sha256 = texts, name, ""

    def __iter__(self) -> Iterator[list[str]]:
        stream, digest = iter(self._texts()), hashlib.sha256()
        while shard := list(islice(stream, SHARD)):
            for text in shard:
                data = text.encode("utf-8", "surrogatepass")
                digest.update(len(data).to_bytes(8, "little") + data)
            yield shard
        if self.sha256 not in ("", digest.hexdigest()):
            raise FastflowError(
                f"{self._name}: the second reading gave other texts than the first, or another order: give texts in a "
                "fixed order that nobody changes meanwhile"
            )
        self.sha256 = digest.hexdigest()


def count_all(workers: Workers, task: Counting, shards: Iterable[list[str]], advance: Callable[[int], Any]) -> Counted:
    """The first pass over all shards."""
    total, tokens = 0, None
    sample: dict[bytes, str] = {}
    limit = b"\xff" * 17  # above every key; later the largest that still matters
    for found in workers(task, iter(shards)):
        total += found.texts
        tokens = found.tokens if tokens is None or found.tokens is None else tokens + found.tokens
        sample |= {key: text for key, text in found.sample.items() if key < limit}
        if len(sample) >= 2 * task.sample:
            sample = smallest(sample, task.sample)
            limit = max(sample)
        advance(found.texts)
    return Counted(total, tokens, dict(sorted(smallest(sample, task.sample).items())))


def measure_all(
    workers: Workers, task: Measuring, shards: Iterable[list[str]], dim: int, advance: Callable[[int], Any]
) -> Moments:
    """The second pass over all shards, merged in their order."""
    out = Moments(dim)
    for found in workers(task, iter(shards)):
        out.merge(found)
        advance(found.count)
    return out


def embed_all(workers: Workers, task: Embedding, texts: Sequence[str], dim: int) -> NDArray[np.float32]:
    """(n, D) embeddings of ``texts``."""
    parts = (list(texts[start : start + SHARD]) for start in range(0, len(texts), SHARD))
    return np.concatenate([np.zeros((0, dim), np.float32), *workers(task, parts)])
