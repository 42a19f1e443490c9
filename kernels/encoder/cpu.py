"""Lay out an encoder for one instruction set, and call the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels import _cpu
from fastflow.kernels._cpu import BF16, BF16_WIDE, FLOAT, INT8, INT8_SIGNED, INT8_TILES, Encoder, formats, isas
from fastflow.kernels.encoder import (
    HEAVIEST,
    LIGHTEST,
    PLAIN,
    WORDS,
    EncoderShape,
    Outliers,
    PoolingSpec,
    mean_position,
)
from fastflow.kernels.encoder.cpu_layers import assemble
from fastflow.kernels.encoder.cpu_layout import Products, Stored, parts_of
from fastflow.kernels.processor import best_first, find_forced_isa, has_tiles, resolve_threads
from fastflow.kernels.stored import CHANGED, STORED, NotFinite, raw, storable, was_changed

# dtype -> formats of products, the best first
DTYPES = {"float32": (FLOAT,), "bfloat16": (BF16, BF16_WIDE), "int8": (INT8_TILES, INT8, INT8_SIGNED)}
IN_WORDS = {
    FLOAT: "",
    BF16: " with bfloat16 dot products",
    BF16_WIDE: " widening bfloat16 weights",
    INT8: " with VNNI dot products",
    INT8_SIGNED: "",
    INT8_TILES: "",
}
LARGEST_HALF = 0x477FE000  # bits of 65504, the largest IEEE half
SMALLEST = 2.0**-10  # least magnitude assumed of a column: zeros have no factor
Array = NDArray[Any]


def choose(dtype: str, isa: str | None = None) -> tuple[str, int]:
    """Return the best instruction set with products for ``dtype``, and their format.

    ``isa``, else FASTFLOW_ISA, names one. Raises ValueError if there is none.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} does not run here; usable are {', '.join(DTYPES)}")
    asked = find_forced_isa(isa)
    best = ("amx",) if dtype != "float32" and not asked and has_tiles() else ()
    for name in (asked,) if asked else chain(best, best_first()):
        for form in formats(isas()[name][0]):
            if form in DTYPES[dtype]:
                return name, form
    raise ValueError(f"dtype {dtype!r} does not run on {asked or 'any instruction set'} on this machine")


def describe(name: str, form: int, isa: str | None = None) -> str:
    """Describe the chosen kernels, and why AMX was not chosen."""
    why = _cpu.amx_missing() if name == "avx512" and form != FLOAT and not find_forced_isa(isa) else ""
    return name + IN_WORDS[form] + (f" (not AMX: {why})" if why else "")


def choose_attention(isa: int, form: int) -> int:
    """Return the attention format: the first of int8, bfloat16 and float32 that ``form`` allows and ``isa`` runs."""
    wanted = {FLOAT: (), BF16_WIDE: (), BF16: (BF16,)}.get(form, (INT8, BF16))
    return next((f for f in wanted if f in _cpu.attention_formats(isa)), FLOAT)


def multiplies_bfloat16() -> bool:
    """Return whether bfloat16 products run here, without widening."""
    try:
        return choose("bfloat16")[1] != BF16_WIDE
    except ValueError:
        return False


def smooth(largest: Mapping[str, Array]) -> dict[str, Array]:
    """Return {product: factors that divide its operand and multiply its weights, for int8}.

    ``largest``: {product: largest magnitude per column}. A factor is the power of two nearest to the magnitude's square
    root: large columns then leave more of 255 values to the others (SmoothQuant, Xiao et al. 2023, eq. 4).
    """
    sizes = {name: np.maximum(np.asarray(x, np.float64), SMALLEST) for name, x in largest.items()}
    return {name: np.exp2(np.rint(np.log2(x) / 2)).astype(np.float32) for name, x in sizes.items()}


def find_outlying(terms: Mapping[str, Array]) -> dict[str, Array]:
    """Return {product: its APART columns with the largest ``terms`` (operand times weight), ascending}, for float32."""
    return {name: np.sort(np.argsort(-x, kind="stable")[: _cpu.APART]).astype(np.int32) for name, x in terms.items()}


class CpuEncoder:
    """Map concatenated texts to pooled vectors (B, P) float32, in one compiled call without padding.

    A text's bits do not depend on other texts or threads. Safe in threads and after fork. Weights are
    copied; ``release`` is called repeatedly, to free weights read. ``dtype``: of the layers' products.
    ``threads``: None for ``default_threads()``. ``isa``: as in ``choose``. ``outliers``: for int8, from ``smooth`` and
    ``find_outlying``.

    Raises ValueError, or NotFinite for weights with NaN or huge magnitudes.
    """

    def __init__(
        self, weights: Stored, shape: EncoderShape, pooling: PoolingSpec, dtype: str = "float32",
        threads: int | None = None, *, isa: str | None = None, outliers: Outliers = PLAIN,
        release: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.dtype, self.layers, self.hidden = dtype, tuple(pooling.layers), shape.hidden
        self.threads = resolve_threads(threads)
        self.isa, form = choose(dtype, isa)
        self.how = describe(self.isa, form, isa)
        number, _, vector, _ = isas()[self.isa]
        together = _cpu.steps_together(number, form)
        products = Products(2 * vector, form, choose_attention(number, form), outliers, together)
        program = assemble(weights, shape, pooling, products)
        self.outputs = program.outputs
        token_weights = _token_weights(pooling, weights)
        words = _words(weights, form != FLOAT and max(self.layers) > 0, self.threads)
        scales = program.vector("word.scales") if "word.scales" in weights else None
        self._mapped = words if scales is not None else None
        release()
        positions = None
        if "position" in weights:
            positions = _floats(weights, "position", self.threads)
            if WORDS in self.layers:
                positions = np.vstack([positions, mean_position(positions, shape.position_start)])
            positions += program.vector("segment")
            if "second" in weights:
                positions = np.vstack([positions, positions + (program.vector("second") - program.vector("segment"))])
        for name in weights.keys() - program.used - {"position"}:
            for i, part in enumerate(parts_of(weights, name)):
                _convert(part, name, i, None, False, self.threads)
            release()
        memory, *tables = program.arrays(self.threads, release)
        self.nbytes = memory.nbytes
        self.compiled = Encoder(
            memory, *tables, positions, words, token_weights, heads=shape.heads, head=program.head, hidden=shape.hidden,
            outputs=program.outputs, position_rows=shape.positions, position_start=shape.position_start,
            pad_id=-1 if shape.pad_id is None else shape.pad_id, layers=len(self.layers), eps=shape.eps, isa=number,
            scales=scales,
        )  # fmt: skip

    def __call__(self, ids: Array, offsets: Array, skip: int = 0, seconds: Array | None = None) -> Array:
        """Return (B, P): pooled vectors of texts ids[offsets[i]:offsets[i + 1]], without their first ``skip`` tokens.

        ``seconds`` (B,): as in ``reference.embed_tokens``; needs the weight ``second``. Raises ValueError, naming the
        text, if it is empty, too long or has an unknown id.
        """
        pooled = np.empty((len(offsets) - 1, self.outputs), np.float32)
        self.compiled.run(ids, offsets, pooled, None, self.threads, skip, seconds)
        self.check()
        return pooled

    def check(self) -> None:
        """Raise ValueError if the file of mapped word rows was changed."""
        if self._mapped is not None and was_changed(self._mapped):
            raise ValueError(f"the word rows cannot be read: {CHANGED}")

    def states(self, ids: Array, offsets: Array) -> dict[int, Array]:
        """Return hidden states of the wanted layers, {layer: (N, D)} float32."""
        pooled = np.empty((len(offsets) - 1, self.outputs), np.float32)
        kept = np.empty((len(self.layers), len(ids), self.hidden), np.float32)
        self.compiled.run(ids, offsets, pooled, kept, self.threads)
        return dict(zip(self.layers, kept, strict=True))


def _convert(array: Array, name: str, part: int, out: Array | None, half: bool, threads: int) -> int:
    table = storable(array)
    to = None if out is None else raw(out)
    largest: int = _cpu.convert(raw(table), STORED.index(table.dtype), to, half, threads)
    if largest > _cpu.LARGEST_BITS:
        raise NotFinite(name, part)
    return largest


def _floats(weights: Stored, name: str, threads: int) -> Array:
    array = parts_of(weights, name)[0]
    out = np.empty(array.shape, np.float32)
    _convert(array, name, 0, out, False, threads)
    return out


def _words(weights: Stored, half: bool, threads: int) -> Array:
    array = parts_of(weights, "word")[0]
    if array.dtype == np.int8:
        return np.ascontiguousarray(array)
    if half or array.dtype == np.float16:
        out = np.empty(array.shape, np.uint16)
        if _convert(array, "word", 0, out, True, threads) <= LARGEST_HALF:
            return out
    return _floats(weights, "word", threads)


def _token_weights(pooling: PoolingSpec, weights: Stored) -> Array | None:
    if (table := pooling.token_weights) is None:
        return None
    if pooling.mode == "pooler":
        raise ValueError("token weights cannot run with pooling 'pooler'")
    vocabulary = len(parts_of(weights, "word")[0])
    if table.shape != (vocabulary,) or table.dtype != np.float32:
        raise ValueError(f"token weights must be float32 of shape ({vocabulary},), not {table.dtype} of {table.shape}")
    if not ((table == 0) | (table >= LIGHTEST) & (table <= HEAVIEST)).all():
        raise ValueError(f"every token weight must be between {LIGHTEST:g} and {HEAVIEST:g}, or 0")
    return np.array(table, order="C")
