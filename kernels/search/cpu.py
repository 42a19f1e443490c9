"""Compiled scans: compare all stored vectors with queries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import processor
from fastflow.kernels._cpu import DOTS, HAMMINGS, isas, scan
from fastflow.kernels._cpu import compare as _compare
from fastflow.kernels._cpu import products as _products
from fastflow.kernels.processor import resolve_threads
from fastflow.kernels.search.reference import Floats, check, check_floats


def dots(
    codes: NDArray[np.int8], query: NDArray[np.int8], threads: int | None = None, isa: str | None = None
) -> NDArray[np.int32]:
    """Compute exact dot products (n,) of ``codes`` (n, D) and ``query`` (D,), D at most 65536."""
    check(codes, query, np.int8)
    return _scan(codes, query, DOTS, threads, isa)


def hammings(
    codes: NDArray[np.uint8], query: NDArray[np.uint8], threads: int | None = None, isa: str | None = None
) -> NDArray[np.int32]:
    """Count differing bits (n,) between ``codes`` (n, bytes) and ``query`` (bytes,)."""
    check(codes, query, np.uint8)
    return _scan(codes, query, HAMMINGS, threads, isa)


def products(
    rows: NDArray[np.float32], queries: NDArray[np.float32], threads: int | None = None, isa: str | None = None
) -> NDArray[np.float32]:
    """Compute (q, n) dot products of ``queries`` (q, D) and ``rows`` (n, D) in float32, in any order.

    The error is at most D 2^-23 times both vectors' lengths, if D is at most 2^22, no number overflows, and no
    length is below 2^-40.
    """
    check_floats(rows, queries)
    out = np.empty((len(queries), len(rows)), np.float32)
    _products(rows, queries, out, isas()[processor.isa(isa)][0], resolve_threads(threads))
    return out


def compare(
    codes: NDArray[np.int8], scale: Floats, least: Floats, others: NDArray[np.int8], other_scale: Floats, slack: Floats,
    begin: int, end: int, room: int, threads: int | None = None, isa: str | None = None,
) -> tuple[NDArray[np.int32], int]:  # fmt: skip
    """Find pairs of rows and others [begin, end) whose scaled product reaches ``least`` (n,) less ``slack`` (m,).

    ``codes`` (n, D) and ``others`` (m, D) are -127 to 127, with a ``scale`` (n,) and ``other_scale`` (m,) for each row.
    If ``codes`` is ``others``, a pair is found once, the lower row first. Float32 rounding changes a product below 2 by
    at most 2^-20. Returns pairs (at most ``room``, 2) in any order, and the number found.
    """
    out = np.empty((room, 2), np.int32)
    name = processor.find_forced_isa(isa) or ("amx" if processor.has_tiles() else processor.isa())
    number = isas()[name][0]
    found = _compare(codes, scale, least, others, other_scale, slack, begin, end, out, number, resolve_threads(threads))
    return out[:found], found


def _scan(codes: NDArray[Any], query: NDArray[Any], which: int, threads: int | None, isa: str | None) -> Any:
    out = np.empty(len(codes), np.int32)
    number = isas()[processor.isa(isa)][0]
    scan(codes.view(np.uint8), query.view(np.uint8), out, which, number, resolve_threads(threads))
    return out
