"""Scans in NumPy, as ``cpu``: compare all stored vectors with queries. They have no threads of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WIDENED = 1 << 16  # bytes widened at a time: 512 KB as float64
Floats = NDArray[np.float32]
ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int32)  # ones in a byte


def dots(codes: NDArray[np.int8], query: NDArray[np.int8], _: int | None = None) -> NDArray[np.int32]:
    """Compute ``cpu.dots``: (n, D), (D,) -> (n,)."""
    check(codes, query, np.int8)
    out, step = np.empty(len(codes), np.int32), max(1, WIDENED // codes.shape[1])
    exact = query.astype(np.float64)  # exact below 2^53
    for at in range(0, len(codes), step):
        out[at : at + step] = codes[at : at + step].astype(np.float64) @ exact
    return out


def hammings(codes: NDArray[np.uint8], query: NDArray[np.uint8], _: int | None = None) -> NDArray[np.int32]:
    """Compute ``cpu.hammings``: (n, bytes), (bytes,) -> (n,)."""
    check(codes, query, np.uint8)
    out, step = np.empty(len(codes), np.int32), max(1, WIDENED // codes.shape[1])
    for at in range(0, len(codes), step):
        out[at : at + step] = ONES[codes[at : at + step] ^ query].sum(axis=1)
    return out


def products(rows: NDArray[np.float32], queries: NDArray[np.float32], _: int | None = None) -> NDArray[np.float32]:
    """Compute ``cpu.products``: (n, D), (q, D) -> (q, n)."""
    check_floats(rows, queries)
    with np.errstate(over="ignore", invalid="ignore"):
        return queries @ rows.T


def compare(
    codes: NDArray[np.int8], scale: Floats, least: Floats, others: NDArray[np.int8], other_scale: Floats, slack: Floats,
    begin: int, end: int, room: int, threads: int | None = None,
) -> tuple[NDArray[np.int32], int]:  # fmt: skip
    """Compute ``cpu.compare``; products are float64."""
    found = [np.empty((0, 2), np.int64)]
    scaled, step = codes * scale[:, None].astype(np.float64), max(1, WIDENED // (codes.shape[1] + len(codes)))
    for at in range(begin, end, step):
        of = slice(at, min(at + step, end))
        products = scaled @ (others[of] * other_scale[of, None].astype(np.float64)).T + slack[of]
        pairs = np.argwhere(products >= least[:, None])
        pairs[:, 1] += at
        found.append(pairs if codes is not others else pairs[pairs[:, 0] < pairs[:, 1]])
    pairs = np.concatenate(found)
    return pairs[:room].astype(np.int32), len(pairs)


def check_floats(rows: NDArray[np.generic], queries: NDArray[np.generic]) -> None:
    """Raise ValueError for rows or queries of other shape, dtype or layout."""
    fits = rows.ndim == queries.ndim == 2 and rows.shape[1] == queries.shape[1] >= 1
    for array in (rows, queries):
        fits = fits and array.dtype == np.float32 and array.flags.c_contiguous and array.flags.aligned
    if not fits:
        raise ValueError(
            "rows (n, D) and queries (q, D) of float32, C-contiguous and aligned, not "
            f"{rows.dtype} {rows.shape} and {queries.dtype} {queries.shape}"
        )


def check(codes: NDArray[np.generic], query: NDArray[np.generic], dtype: type[np.generic]) -> None:
    """Raise ValueError for codes or a query of other shape, dtype or layout."""
    fits = codes.ndim == 2 and query.shape == codes.shape[1:] and 1 <= codes.shape[1] <= 65536
    contiguous = codes.flags.c_contiguous and query.flags.c_contiguous
    if not fits or not contiguous or codes.dtype != dtype or query.dtype != dtype:
        raise ValueError(
            f"codes (n, D) and a query (D,) of {np.dtype(dtype)}, C-contiguous and at most 65536 wide, not "
            f"{codes.dtype} {codes.shape} and {query.dtype} {query.shape}"
        )
