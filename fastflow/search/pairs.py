"""Compare all pairs of vectors: int8 codes choose candidates by a bound that misses none, float64 decides.

Let x and y be rows divided by their lengths, c their codes, s their scales, and r the length of x - s c. Then x y
differs from s_x s_y c_x c_y by at most r_x + r_y + r_x r_y (Cauchy-Schwarz). A pair is a candidate if its code product
comes that near to the limit, less SLACK for the rounding of float32. Cosines are float64 sums over the dimensions in
one order, so results do not depend on instruction set, threads or strips.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.matrix import MatrixRows
from fastflow.options import check_texts, iterate_in_order
from fastflow.search.scan import PIECE, TINY, encode_bytes, kernels
from fastflow.transforms.vectors import check_count
from fastflow.values import short

if TYPE_CHECKING:
    from fastflow.runtime import Runtime

Rows = NDArray[np.int64]
EDGE = np.dtype([("earlier", "<i4"), ("later", "<i4"), ("cosine", "<f8")])
BLOCK = 8192  # rows quantized at a time
WORK, TILE = 1 << 32, 512  # pairs in a strip; columns in a tile of the kernel
ROOM = 1 << 20  # candidates of a strip, before more memory is taken
MOST = 100_000_000  # pairs that may pass
SLACK = 2.0**-19
KEY = 16  # bytes of a hash


class QuantizedRows(NamedTuple):
    """int8 codes (n, D), their scales (n,), and the lengths (n,) of what the codes lose of a row of length 1."""

    codes: NDArray[np.int8]
    scale: NDArray[np.float32]
    residual: NDArray[np.float32]


def quantize_rows(take: Callable[[Rows], NDArray[Any]], rows: Rows, dim: int) -> QuantizedRows:
    """Quantize ``rows`` (n,), whose vectors (b, D) ``take`` returns."""
    codes, scale, residual = np.empty((len(rows), dim), np.int8), *np.empty((2, len(rows)), np.float32)
    for start in range(0, len(rows), BLOCK):
        of = slice(start, start + BLOCK)
        x = take(rows[of]).astype(np.float64)
        x /= np.maximum(np.sqrt((x * x).sum(axis=1, keepdims=True)), TINY)
        codes[of], scale[of] = encode_bytes(x)
        lost = x - codes[of] * scale[of, None].astype(np.float64)
        residual[of] = np.nextafter(np.sqrt((lost * lost).sum(axis=1)).astype(np.float32), np.float32(np.inf))
    return QuantizedRows(codes, scale, residual)


def compute_cosines(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Compute the cosines (n,) of rows x (n, D) and y (n, D); equal rows have 1, and a row of zeros 0."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    lengths = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    return np.clip((x * y).sum(axis=1) / np.maximum(lengths, TINY), -1.0, 1.0)


class Comparison:
    """All pairs of the rows of ``vectors``, or of the rows of ``against`` with them.

    Places number the rows of ``against``, below ``split``, then those of ``vectors`` by ``order``; ``rows`` (n,) are
    their numbers, ``first`` (n,) the place of the first equal row, ``text`` (n,) of the first with the same text.
    ``texts`` and ``other_texts`` are hashes.
    """

    def __init__(
        self, vectors: MatrixRows, texts: NDArray[Any] | None, order: Rows | None = None,
        against: MatrixRows | None = None, other_texts: NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        self.split = 0 if against is None else len(against)
        own = np.arange(len(vectors)) if order is None else order
        self.rows = np.concatenate([np.arange(self.split), own])
        if against is not None and against.shape[1] != vectors.shape[1]:
            raise UsageError(f"{vectors.name} has {vectors.shape[1]} dimensions, and {against.name} {against.shape[1]}")
        self._vectors, self._against = vectors, against
        keys = None if texts is None else texts[own]
        if against is not None and keys is not None:
            keys = None if other_texts is None else np.concatenate([other_texts, keys])
        self.first = find_first(self._take, len(self.rows), keys)
        self.text = self.first if keys is None else find_equal(keys)

    def _take(self, places: Rows) -> NDArray[np.float32]:
        """Return the vectors (b, D) at ``places`` (b,)."""
        if self._against is None:
            return self._vectors[self.rows[places]]
        found = np.empty((len(places), self._vectors.shape[1]), np.float32)
        other = places < self.split
        found[other], found[~other] = self._against[places[other]], self._vectors[self.rows[places[~other]]]
        return found

    def prepare(self, above: float, threads: int | None = None) -> None:
        """Quantize all different rows, and cut the columns of their pairs into ``strips``."""
        own = np.flatnonzero(self.first == np.arange(len(self.first)))
        self._columns = self._lines = own[own >= self.split]
        self.above, self.threads, self._room = above, threads, ROOM
        self._others = self._codes = quantize_rows(self._take, self._columns, self._vectors.shape[1])
        if self._against is not None:
            self._lines = own[own < self.split]
            self._codes = quantize_rows(self._take, self._lines, self._vectors.shape[1])
        wide = max(TILE, WORK // max(1, len(self._lines)) // TILE * TILE)
        self.strips = [(at, min(at + wide, len(self._columns))) for at in range(0, len(self._columns), wide)]
        most = float(self._codes.residual.max(initial=0))
        self._slack = (self._others.residual * np.float32(1 + most) + np.float32(SLACK)).astype(np.float32)

    def count(self, start: int, stop: int) -> int:
        """Count the pairs of the strips from ``start`` to before ``stop``."""
        if self._codes is not self._others:
            return sum(to - at for at, to in self.strips[start:stop]) * len(self._lines)
        return sum(to * (to - 1) // 2 - at * (at - 1) // 2 for at, to in self.strips[start:stop])

    def compare_strip(self, number: int) -> NDArray[Any]:
        """Compare a strip; return its EDGEs, ordered by later and earlier place."""
        mine, others = self._codes, self._others
        least = np.float32(self.above) - mine.residual
        given = (mine.codes, mine.scale, least, others.codes, others.scale, self._slack, *self.strips[number])
        pairs, found = kernels.compare(*given, self._room, self.threads)
        if found > MOST:
            raise refuse_pairs(found, self.above)
        if found > self._room:
            self._room = found
            pairs, _ = kernels.compare(*given, found, self.threads)
        edges = np.empty(len(pairs), EDGE)
        edges["earlier"], edges["later"] = self._lines[pairs[:, 0]], self._columns[pairs[:, 1]]
        for start in range(0, len(edges), PIECE):
            some = edges[start : start + PIECE]
            earlier, later = (self._take(some[name].astype(np.int64)) for name in ("earlier", "later"))
            some["cosine"] = compute_cosines(earlier, later)
        edges = edges[edges["cosine"] >= self.above]
        return edges[np.lexsort((edges["earlier"], edges["later"]))]

    def collect(self, strips: Iterable[NDArray[Any]], limits: Sequence[float] = ()) -> NearPairs:
        """Join the EDGEs of ``strips``; too many raise ``above`` to the next of ``limits``, or an error without one."""
        found, most = list[NDArray[Any]](), 8 * ROOM if limits else MOST
        for edges in strips:
            found.append(edges[edges["cosine"] >= self.above])
            while (total := sum(map(len, found))) > most:
                higher = [limit for limit in limits if limit > self.above]
                if not higher:
                    raise refuse_pairs(total, self.above)
                self.above = min(higher)
                found = [each[each["cosine"] >= self.above] for each in found]
        return NearPairs(self.above, np.concatenate([np.empty(0, EDGE), *found]), self)

    def save(self, path: Path) -> None:
        """Write what another process needs to compare; vectors are files."""
        files = [os.path.abspath(each.name) for each in (self._vectors, self._against) if each is not None]
        np.savez(path, vectors=files, order=self.rows[self.split :], first=self.first, above=self.above)


def refuse_pairs(count: int, above: float) -> FastflowError:
    """Return the error for too many pairs."""
    return FastflowError(
        f"{count:,} pairs or more have a cosine of about {above:g} or more, and {MOST:,} can be held: give a higher "
        "limit"
    )


def find_equal(keys: NDArray[Any]) -> Rows:
    """Return for each of ``keys`` (n,) the place of the first equal one."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def hash_all(items: Iterable[bytes]) -> NDArray[Any]:
    """Return the hash of each item, as an array (n,) of KEY bytes each."""
    return np.frombuffer(b"".join(blake2b(each, digest_size=KEY).digest() for each in items), f"V{KEY}")


def encode_text(text: str) -> bytes:
    """Return the bytes of a text, which may hold half a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")


def find_first(take: Callable[[Rows], NDArray[Any]], count: int, texts: NDArray[Any] | None) -> Rows:
    """Return for each of ``count`` rows the first with an equal text or an equal vector other than zeros."""
    first = np.arange(count) if texts is None else find_equal(texts)
    own = np.flatnonzero(first == np.arange(count))

    def vectors() -> Iterator[bytes]:
        for start in range(0, len(own), BLOCK):
            rows = own[start : start + BLOCK]
            for row, vector in zip(rows.tolist(), take(rows) + np.float32(0), strict=True):  # -0 becomes 0
                yield vector.tobytes() if vector.any() else b"%d" % row

    return own[find_equal(hash_all(vectors()))][np.searchsorted(own, first)]


@dataclass(frozen=True)
class Duplicates:
    """The rows of n texts that stay, and the rows removed because an earlier kept row is as near as ``above``.

    ``kept`` (k,) and ``removed`` (r,): rows in their order; ``of`` (r,): the kept row nearest to each removed row, or
    row of ``against``; ``cosine`` (r,) float64: of both; ``exact`` (r,): their texts, or without texts their vectors,
    are equal. Equal texts have one ``of``.
    """

    above: float
    kept: Rows
    removed: Rows
    of: Rows
    cosine: NDArray[np.float64]
    exact: NDArray[np.bool_]
    pairs: NearPairs

    def at(self, limit: float) -> Duplicates:
        """Apply a higher limit, without comparing again.

        Args:
            limit: A cosine from ``above`` to 1.

        Returns:
            The duplicates at that limit.

        Raises:
            FastflowError: The limit is below ``above``.
        """
        if not self.above <= check_limit(limit):
            raise UsageError(f"pairs below {self.above:g} were not compared: give a limit from there to 1")
        return self.pairs.keep_first(limit)

    def groups(self) -> list[Rows]:
        """List each kept row with the rows removed for it, the largest group first.

        Returns:
            Arrays of rows, the kept one first.
        """
        order = np.lexsort((self.removed, -self.cosine, self.of))
        starts = np.flatnonzero(np.diff(self.of[order], prepend=-1))
        rest = np.split(self.removed[order], starts[1:]) if len(order) else []
        found = [np.concatenate([[of], each]) for of, each in zip(self.of[order][starts], rest, strict=True)]
        return sorted(found, key=lambda each: -len(each))


@dataclass(frozen=True)
class NearPairs:
    """The EDGEs of a comparison, of a cosine of ``above`` or more."""

    above: float
    edges: NDArray[Any]
    of: Comparison

    def keep_first(self, limit: float) -> Duplicates:
        """In the order of places, keep a row unless an earlier kept row has a cosine of at least ``limit``."""
        edges, first, split = self.edges[self.edges["cosine"] >= limit], self.of.first, self.of.split
        count = len(first)
        gone = np.zeros(count, bool)
        starts = np.flatnonzero(np.diff(edges["later"], prepend=-1))
        ends = np.append(starts, len(edges))[1:]
        earlier = edges["earlier"]
        for start, end, row in zip(starts.tolist(), ends.tolist(), edges["later"][starts].tolist(), strict=True):
            gone[row] = not gone[earlier[start:end]].all()
        near = edges[~gone[earlier] & gone[edges["later"]]]
        near = near[np.lexsort((near["earlier"], -near["cosine"], near["later"]))]
        near = near[np.diff(near["later"], prepend=-1) > 0]
        of, cosine = np.arange(count), np.ones(count)
        of[near["later"]], cosine[near["later"]] = near["earlier"], near["cosine"]
        copies = first < np.arange(count)
        copies &= (split == 0) | (first < split) | gone[first]
        of[copies], cosine[copies] = of[first[copies]], cosine[first[copies]]
        gone |= copies
        gone[:split] = False
        removed, kept = np.flatnonzero(gone), split + np.flatnonzero(~gone[split:])
        equal, rows = self.of.text[of[removed]] == self.of.text[removed], self.of.rows
        return Duplicates(limit, rows[kept], rows[removed], rows[of[removed]], cosine[removed], equal, self)


def check_limit(limit: Any) -> float:
    """Return a cosine in (0, 1]; raises a UsageError."""
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.floating) or not 0 < limit <= 1:
        raise UsageError(f"the limit is a cosine above 0 and at most 1, not {short(limit)}")
    return float(limit)


def duplicates(
    texts: Any, runtime: Runtime | None = None, *, above: float, against: Any = None, threads: int | None = None
) -> Duplicates:
    """Find the texts that are near an earlier one.

    In the order of the input a text is kept unless its cosine with an earlier kept text is at least ``above``: each
    removed text has a kept one that near, and no two kept ones are. All pairs are compared, and none is missed.

    Args:
        texts: n texts; or their vectors (n, D), an array or list of floats.
        runtime: The model that embeds texts.
        above: The limit, a cosine above 0 and at most 1.
        against: Other texts or vectors: a text is removed if one of these is near, and all others are kept.
        threads: The threads to compare with. None: the cores that this process may use.

    Returns:
        Duplicates: the rows ``kept`` and ``removed``; the kept row ``of`` each removed one, the nearest, their
        ``cosine`` and whether they are equal (``exact``); ``at(limit)`` and ``groups()``.

    Raises:
        FastflowError: A vector is not finite, widths differ, texts are given without a runtime, or too many pairs pass.
    """
    above = check_limit(above)
    other = (None, None) if against is None else _embed(against, runtime)
    run = Comparison(*_embed(texts, runtime), None, *other)
    run.prepare(above, threads)
    return run.collect(map(run.compare_strip, range(len(run.strips)))).keep_first(above)


def groups(
    texts: Any, runtime: Runtime | None = None, *, above: float, least: int = 2, threads: int | None = None
) -> list[Rows]:
    """Group texts: a group has a text and all texts near it (``community_detection`` of Sentence Transformers).

    Args:
        texts: As for ``duplicates``, like all other arguments.
        runtime: As for ``duplicates``.
        above: The least cosine of a text with the first of its group.
        least: The least size of a group.
        threads: As for ``duplicates``.

    Returns:
        Disjoint arrays of rows, the largest first. Texts are taken by the number of texts near them: one that is in no
        group begins one, with the near texts that are in none, if they are ``least`` or more. It is the first row of
        its group, and the others follow by their cosine.
    """
    check_count("least", least)
    pairs = duplicates(texts, runtime, above=above, threads=threads).pairs
    first, edges = pairs.of.first, pairs.edges
    count = len(first)
    ends = np.concatenate([edges["earlier"], edges["later"], np.arange(count)])
    others = np.concatenate([edges["later"], edges["earlier"], first])  # a row is near its first equal one
    cosine = np.concatenate([edges["cosine"], edges["cosine"], np.ones(count)])
    members = np.split(np.argsort(first, kind="stable"), np.cumsum(np.bincount(first, minlength=count))[:-1])
    own = first[ends] == ends
    order = np.lexsort((others[own], -cosine[own], others[own] != ends[own], ends[own]))
    starts = np.flatnonzero(np.diff(ends[own][order], prepend=-1))
    near = [np.concatenate([members[each] for each in some]) for some in np.split(others[own][order], starts[1:])]
    taken, found = np.zeros(count, bool), list[Rows]()
    for each in sorted(near, key=lambda rows: -len(rows)):
        left = each[~taken[each]]
        if not taken[each[0]] and len(left) >= least:
            taken[left] = True
            found.append(left)
    return sorted(found, key=lambda rows: -len(rows))


def _embed(texts: Any, runtime: Runtime | None) -> tuple[MatrixRows, NDArray[Any] | None]:
    """Return vectors and the texts' hashes, None for vectors."""
    if isinstance(texts, np.ndarray) or not (len(texts) and isinstance(texts[0], str)):
        array = np.asarray(texts) if len(texts) or isinstance(texts, np.ndarray) else np.empty((0, 1), np.float32)
        return MatrixRows(array, "the vectors"), None
    if runtime is None:
        raise UsageError("texts are compared by their vectors: give runtime=, the model that embeds them")
    given = list(check_texts(iterate_in_order(texts)))
    vectors = np.asarray(runtime.encode(given), np.float32)
    return MatrixRows(vectors, "the texts"), hash_all(map(encode_text, given))
