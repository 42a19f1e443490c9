"""Truncation, normalisation, precision and similarity of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, UsageError
from fastflow.values import MOST, is_whole, short

if TYPE_CHECKING:
    from fastflow.transforms.truncation import Truncation


PRECISIONS = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
INT8_SIGMAS = 4.0


def shorten(z: NDArray[Any], normalize: bool, truncate: int | None, order: Truncation | None = None) -> NDArray[Any]:
    """Cut (B, D') to the first columns, or directions of ``order``; then divide by L2 norms if ``normalize``."""
    if order is not None and truncate is not None:
        z = z @ order.basis[:, :truncate].astype(z.dtype)
    z = z[:, :truncate]
    if normalize:
        z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), np.finfo(z.dtype).tiny)
    return np.ascontiguousarray(z)


def check_truncation(truncate: int | None, dim: int, name: str = "truncate_dim") -> None:
    """Raise unless the option ``name`` is None or 1 to ``dim``."""
    if truncate is not None and not _is_count(truncate, dim):
        raise UsageError(f"{name} must be 1 to {dim}, the width of this model, not {short(truncate)}")


def check_count(name: str, value: Any) -> None:
    """Raise unless the option ``name`` is None or a whole number of at least 1."""
    if value is not None and not _is_count(value):
        raise UsageError(f"{name} must be a whole number of at least 1, not {short(value)}")


def _is_count(value: Any, most: int = MOST) -> bool:
    return is_whole(int(value) if isinstance(value, np.integer) else value, 1, most)


def check_precision(precision: str) -> None:
    """Raise for a precision unknown to ``quantise``."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise UsageError(f"unknown precision {short(precision)}; known are {', '.join(PRECISIONS)}")


def first_bad(z: NDArray[Any]) -> int | None:
    """Return the number of the first row of (B, D) or (B,) that is not finite, or None."""
    if np.isfinite(z).all():
        return None
    return int(np.flatnonzero(~np.isfinite(z.reshape(len(z), -1)).all(axis=1))[0])


def check_finite(z: NDArray[Any], what: str, start: int = 0) -> NDArray[Any]:
    """Return ``z`` (B, D') or (B,); raises for the first row that is not finite, numbered from ``start``."""
    if (row := first_bad(z)) is not None:
        raise FastflowError(
            f"{what} {start + row} gives NaN or infinity: the model's numbers leave the range of its dtype; try "
            "another dtype, or train the model again"
        )
    return z


def check_ranges(ranges: Any, precision: str, dim: int) -> NDArray[np.float32] | None:
    """Return ``ranges`` (2, ``dim``) as float32, or None; raises for another shape or precision."""
    if ranges is None:
        return None
    if precision not in ("int8", "uint8"):
        raise UsageError(f"ranges= are those of int8 and uint8, and precision is {precision!r}: leave ranges out")
    try:
        array = np.asarray(ranges)
    except ValueError as error:
        raise UsageError(f"ranges must be (2, {dim}) numbers, the minima and the maxima: {error}") from error
    if array.dtype.kind not in "fiu" or array.shape != (2, dim):
        raise UsageError(
            f"ranges must be (2, {dim}) numbers, the minima and the maxima of the embeddings that are stored, not "
            f"{array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # overflow becomes infinity, refused below
        array = array.astype(np.float32, copy=False)
        bad = ~(np.isfinite(array[1] - array[0]) & (array[0] <= array[1]))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        low, high = array[:, at].tolist()
        raise UsageError(
            f"ranges: dimension {at} goes from {low:g} to {high:g}; give a finite minimum, then the maximum"
        )
    return array


def quantise(
    z: NDArray[Any],
    precision: str,
    normalized: bool,
    spread: NDArray[Any] | None,
    ranges: NDArray[np.float32] | None = None,
) -> NDArray[Any]:
    """Convert (B, D') to ``precision``; names and packings are Sentence Transformers'.

    int8 and uint8 cut ``ranges`` (2, D'), minima and maxima, into 256 levels. Without ``ranges`` they need ``spread``
    (D',), the root mean square of each dimension before normalisation: all dimensions have the range +-INT8_SIGMAS
    times the largest. binary and ubinary pack signs, eight to a byte.
    """
    if precision == "float32":
        return z
    check_precision(precision)
    if precision == "float16":
        with np.errstate(over="ignore"):
            half = z.astype(np.float16)
        if not np.isfinite(half).all():
            raise FastflowError(
                "precision 'float16' ends at 65504, and an embedding holds more; take float32 or normalise"
            )
        return half
    if precision in ("binary", "ubinary"):
        packed = np.packbits(z > 0, axis=1)
        return packed if precision == "ubinary" else (packed.astype(np.int16) - 128).astype(np.int8)
    if ranges is not None:
        return _in_ranges(z, precision, ranges)
    if spread is None:
        raise UsageError(
            f"precision {precision!r} needs the range of each dimension, and this model stores none (fastflow-train "
            "stores one): give the option ranges, the minima and the maxima of embeddings, "
            f"(2, {z.shape[1]}), as quantize_embeddings of Sentence Transformers takes them; or take float16 or ubinary"
        )
    wide = spread.astype(np.float64)
    span = INT8_SIGMAS * float(wide.max()) / (float(np.linalg.norm(wide)) if normalized else 1.0)
    levels = np.clip(np.rint(z * (127 / span)), -127, 127)
    return levels.astype(np.int8) if precision == "int8" else (levels + 128).astype(np.uint8)


def _in_ranges(z: NDArray[Any], precision: str, ranges: NDArray[np.float32]) -> NDArray[Any]:
    starts = ranges[0]
    steps = (ranges[1] - starts) / 255
    steps = np.where(steps == 0, 1, steps)
    with np.errstate(over="ignore"):  # overflow is clipped to the last step
        levels = np.clip(np.floor((z - starts) / steps), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)


def check_pooled(x: Any, dim: int, dtype: Any, method: str = "transform") -> NDArray[Any]:
    """Return ``x`` as (B, dim) floats; raises for a wrong shape and a row that is not finite."""
    array = _read_array(x, f"{method} takes numbers of shape (B, {dim}), rows of one length")
    if array.dtype.kind in "US" or (array.dtype.kind == "O" and any(isinstance(item, str) for item in array.flat)):
        raise FastflowError(f"{method} takes numbers of shape (B, {dim}), not texts; texts go to encode()")
    if array.dtype.kind not in "fiu" or array.ndim != 2 or array.shape[1] != dim:
        raise FastflowError(f"{method} takes numbers of shape (B, {dim}); got {array.dtype} of shape {array.shape}")
    return _as_floats(array, dtype, method)


def check_vectors(x: Any, dtype: Any) -> NDArray[Any]:
    """Return ``x``, (D,) or (B, D), as (B, D) floats; raises for another shape or type, and for NaN."""
    array = _read_array(x, "similarity takes texts, or vectors of one width")
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise FastflowError(f"similarity takes texts, or numbers of shape (B, D); got {array.dtype} of {array.shape}")
    return _as_floats(np.atleast_2d(array), dtype, "similarity")


def _read_array(x: Any, takes: str) -> NDArray[Any]:
    try:
        return np.asarray(x)
    except ValueError as error:
        raise FastflowError(f"{takes}: {error}") from error


def _as_floats(array: NDArray[Any], dtype: Any, method: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # overflow becomes infinity, refused below
        array = array.astype(dtype, copy=False)
    if (row := first_bad(array)) is not None:
        raise FastflowError(f"{method}: row {row} holds NaN or infinity")
    return array


def cosine(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) cosines, -1 to 1, 0 for zero vectors."""
    tiny = np.finfo(np.float32).tiny
    check_same_width(a, b)
    a = a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), tiny)
    b = b / np.maximum(np.linalg.norm(b, axis=1, keepdims=True), tiny)
    product = np.asarray(a @ b.T)
    return np.clip(product, -1.0, 1.0, out=product)  # rounding may exceed 1 by 1e-7


def check_same_width(a: NDArray[Any], b: NDArray[Any]) -> None:
    """Raise unless ``a`` (m, D) and ``b`` (n, D') have the same width."""
    if a.shape[1:] != b.shape[1:]:
        raise FastflowError(f"similarity takes vectors of one width, not {a.shape[1]} and {b.shape[1]}")


def compute_paired_cosine(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (m, D) -> (m,) cosines, row by row."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.clip((a * b).sum(axis=1) / np.maximum(norms, np.finfo(np.float32).tiny), -1.0, 1.0)


BLOCK = 1 << 22
Measure = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


def dot(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) dot products."""
    check_same_width(a, b)
    return np.asarray(a @ b.T)


def euclidean(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) negated Euclidean distances."""
    return _measure(_euclidean, a, b)


def manhattan(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (n, D) -> (m, n) negated sums of absolute differences."""
    return _measure(_manhattan, a, b)


def _euclidean(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return -np.asarray(np.sqrt(np.square(a - b).sum(axis=-1)))


def _manhattan(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return -np.asarray(np.abs(a - b).sum(axis=-1))


def _measure(rows: Measure, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    check_same_width(a, b)
    out = np.empty((len(a), len(b)), np.result_type(a, b))
    step = max(1, BLOCK // max(1, b.size))
    for start in range(0, len(a), step):
        out[start : start + step] = rows(a[start : start + step, None], b)
    return out


def pairwise(name: str, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Compute (m, D), (m, D) -> (m,) similarities of kind ``name``, row by row."""
    check_same_width(a, b)
    if len(a) != len(b):
        raise FastflowError(f"similarity_pairwise takes as many rows on both sides, not {len(a)} and {len(b)}")
    if name == "cosine":
        return compute_paired_cosine(a, b)
    if name == "dot":
        return np.asarray((a * b).sum(axis=1))
    return _manhattan(a, b) if name == "manhattan" else _euclidean(a, b)


SIMILARITIES: dict[str, Measure] = {"cosine": cosine, "dot": dot, "euclidean": euclidean, "manhattan": manhattan}
