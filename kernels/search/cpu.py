"""Compiled scans: compare all stored vectors with queries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import processor
from fastflow.kernels._cpu import DOTS, HAMMINGS, isas, scan
from fastflow.kernels._cpu import products as _products
from fastflow.kernels.processor import resolve_threads
from fastflow.kernels.search.reference import check, check_floats


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


def _scan(codes: NDArray[Any], query: NDArray[Any], which: int, threads: int | None, isa: str | None) -> Any:
    out = np.empty(len(codes), np.int32)
    number = isas()[processor.isa(isa)][0]
    scan(codes.view(np.uint8), query.view(np.uint8), out, which, number, resolve_threads(threads))
    return out
