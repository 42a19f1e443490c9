"""Choose the CPU encoder's instruction set and products, pack its weights, and call the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels._cpu import (
    APART,
    BF16,
    BF16_WIDE,
    FLOAT,
    INT8,
    INT8_SIGNED,
    INT8_TILES,
    LARGEST_BITS,
    Encoder,
    amx_missing,
    attention_formats,
    convert,
    formats,
    isas,
)
from fastflow.kernels.encoder.cpu_layers import assemble, head_weights
from fastflow.kernels.encoder.cpu_layout import Stored, parts_of
from fastflow.kernels.encoder.shape import HEAVIEST, LIGHTEST, WORDS, EncoderShape, Head, mean_position
from fastflow.kernels.isa import best_first, forced_isa, has_tiles
from fastflow.kernels.panels import STORED, NotFinite, raw, storable
from fastflow.kernels.threads import default_threads

# dtype -> formats of its products, the best first, and their description
DTYPES = {"float32": (FLOAT,), "bfloat16": (BF16, BF16_WIDE), "int8": (INT8_TILES, INT8, INT8_SIGNED)}
IN_WORDS = {
    FLOAT: "",
    BF16: " with bfloat16 dot products",
    BF16_WIDE: " widening bfloat16 weights",
    INT8: " with VNNI dot products",
    INT8_SIGNED: "",
    INT8_TILES: "",
}
LARGEST_HALF = 0x477FE000  # the bits of 65504 as float32
SMALLEST = 2.0**-10  # least column size for smoothing: a column of zeros has no factor
Array = NDArray[Any]


def choose(dtype: str, isa: str | None = None) -> tuple[str, int]:
    """Return the best instruction set here with products for ``dtype``, and their format.

    ``isa``, or FASTFLOW_ISA if it is None, names it instead. Raises ValueError if there is none.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} does not run here; usable are {', '.join(DTYPES)}")
    asked = forced_isa(isa)
    best = ("amx",) if dtype != "float32" and not asked and has_tiles() else ()
    for name in (asked,) if asked else chain(best, best_first()):
        for form in formats(isas()[name][0]):
            if form in DTYPES[dtype]:
                return name, form
    raise ValueError(f"dtype {dtype!r} does not run on {asked or 'any instruction set'} on this machine")


def described(name: str, form: int, isa: str | None = None) -> str:
    """Describe the running kernels, and why AMX was not chosen; ``isa`` as in ``choose``."""
    why = amx_missing() if name == "avx512" and form != FLOAT and not forced_isa(isa) else ""
    return name + IN_WORDS[form] + (f" (not AMX: {why})" if why else "")


def attends(isa: int, form: int) -> int:
    """Return the attention format for products of ``form``: bytes with bytes, else bfloat16 if reduced, else float32.

    Formats that this machine lacks are passed over.
    """
    wanted = {FLOAT: (), BF16_WIDE: (), BF16: (BF16,)}.get(form, (INT8, BF16))
    return next((f for f in wanted if f in attention_formats(isa)), FLOAT)


def multiplies_bfloat16() -> bool:
    """Return whether ``choose`` gives bfloat16 products instead of widened weights: only these help long texts."""
    try:
        return choose("bfloat16")[1] != BF16_WIDE
    except ValueError:
        return False


def smoothed(largest: Mapping[str, Array]) -> dict[str, Array]:
    """Return {matrix product: factors that divide its activations and multiply its weights, for int8}.

    ``largest``: {matrix product: the largest magnitude in each activation column}. A factor is the power of two nearest
    to its square root, in the logarithm. An int8 row has one scale: columns that are always large, as after BERT's
    LayerNorms, would leave the others few of its 255 values (SmoothQuant, Xiao et al. 2023, eq. 4).
    """
    sizes = {name: np.maximum(np.asarray(x, np.float64), SMALLEST) for name, x in largest.items()}
    return {name: np.exp2(np.rint(np.log2(x) / 2)).astype(np.float32) for name, x in sizes.items()}


def outlying(terms: Mapping[str, Array]) -> dict[str, Array]:
    """Return for each product the APART columns with the largest ``terms``, ascending, to multiply in float32.

    A term is a column's largest operand times its largest weight. Smoothing does not help columns with both large: they
    would leave other columns few steps in one of the two rows.
    """
    return {name: np.sort(np.argsort(-x, kind="stable")[:APART]).astype(np.int32) for name, x in terms.items()}


class CpuEncoder:
    """Concatenated texts -> pooled vectors (B, P) float32, as one compiled call without padding.

    A text's bits do not depend on other texts, order or threads. Sums, LayerNorm, softmax and activations are float32,
    sums of byte products int32. Safe from several threads, and after fork.

    Args:
        weights: as ``reference.encode`` takes them, or as ``cpu_layout.Stored``; all are copied.
        shape: the parameters of the equations.
        mode: pooler, or one of ``texts.MODES``, or several joined by ``+``.
        layers: the pooled layers; 0: the embeddings; WORDS: the embeddings with the mean position.
        dtype: of the products in the layers; below float32 the table of words is float16 if there are such products.
        threads: the most threads; None: ``default_threads()``.
        release: called repeatedly while weights are read, to free weights already read.
        token_weights: (vocabulary,) float32, 0 or LIGHTEST to HEAVIEST, as in ``texts.pool``, not for pooler; None: all
            1.
        shares: of the layers in their sum; None: equal shares of sum 1.
        head: the modules after pooling.
        isa: as in ``choose``.
        smoothing: for int8, as ``smoothed`` makes it; None: no factors.
        apart: for int8, as ``outlying`` makes it; None: no columns are multiplied in float32.

    Raises:
        ValueError: for arguments that cannot run; NotFinite for weights, also unused ones, with NaN, infinity or
            magnitudes above panels.LARGEST.
    """

    def __init__(
        self, weights: Stored, shape: EncoderShape, mode: str, layers: Sequence[int], dtype: str = "float32",
        threads: int | None = None, release: Callable[[], None] = lambda: None, *, token_weights: Array | None = None,
        shares: Sequence[float] | None = None, head: Head = (), isa: str | None = None,
        smoothing: Mapping[str, Array] | None = None, apart: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        self.dtype, self.layers, self.hidden = dtype, tuple(layers), shape.hidden
        self.threads = default_threads() if threads is None else threads
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.isa, form = choose(dtype, isa)
        self.how = described(self.isa, form, isa)
        number, _, vector, _ = isas()[self.isa]
        everything = {**weights, **head_weights(head)}
        program = assemble(
            everything, shape, mode, self.layers, 2 * vector, form, attends(number, form), shares, head, smoothing,
            apart,
        )  # fmt: skip
        self.outputs = program.outputs
        if token_weights is not None:
            token_weights = _token_weights(token_weights, mode, weights)
        words = _words(weights, form != FLOAT and max(self.layers) > 0, self.threads)
        release()
        positions = None
        if "position" in weights:
            positions = _floats(weights, "position", self.threads)
            if WORDS in self.layers:
                positions = np.vstack([positions, mean_position(positions, shape.position_start)])
            positions += program.vector("segment")
        for name in weights.keys() - program.used - {"position"}:
            _check(weights, name, self.threads)
            release()
        memory, *tables = program.arrays(self.threads, release)
        self.nbytes = memory.nbytes
        self.compiled = Encoder(
            memory, *tables, positions, words, token_weights, heads=shape.heads, head=program.head, hidden=shape.hidden,
            outputs=program.outputs, position_rows=shape.positions, position_start=shape.position_start,
            pad_id=-1 if shape.pad_id is None else shape.pad_id, layers=len(self.layers), eps=shape.eps, isa=number,
        )  # fmt: skip

    def __call__(self, ids: Array, offsets: Array, skip: int = 0) -> Array:
        """Return (B, P) float32 pooled vectors of the texts ids[offsets[i]:offsets[i + 1]]; ids int32, offsets int64.

        Pooling leaves out the first ``skip`` tokens of every text. Raises ValueError, naming the text, for a text
        without tokens, with too many, or with an id outside the vocabulary.
        """
        pooled = np.empty((len(offsets) - 1, self.outputs), np.float32)
        self.compiled.run(ids, offsets, pooled, None, self.threads, skip)
        return pooled

    def states(self, ids: Array, offsets: Array) -> dict[int, Array]:
        """Return hidden states of the wanted layers, {layer: (N, D)} float32."""
        pooled = np.empty((len(offsets) - 1, self.outputs), np.float32)
        kept = np.empty((len(self.layers), len(ids), self.hidden), np.float32)
        self.compiled.run(ids, offsets, pooled, kept, self.threads)
        return dict(zip(self.layers, kept, strict=True))


def _floats(weights: Stored, name: str, threads: int) -> Array:
    table = storable(parts_of(weights, name)[0])
    out = np.empty(table.shape, np.float32)
    if convert(raw(table), STORED.index(table.dtype), raw(out), False, threads) > LARGEST_BITS:
        raise NotFinite(name)
    return out


def _words(weights: Stored, half: bool, threads: int) -> Array:
    """A copy of the words as float16 bits (uint16) if stored so or ``half``, and if they fit; else as float32."""
    table = storable(parts_of(weights, "word")[0])
    if half or table.dtype == np.float16:
        out = np.empty(table.shape, np.uint16)
        if convert(raw(table), STORED.index(table.dtype), raw(out), True, threads) <= LARGEST_HALF:
            return out  # rounds less than the first product's operand will
    return _floats(weights, "word", threads)


def _token_weights(table: Array, mode: str, weights: Stored) -> Array:
    if mode == "pooler":
        raise ValueError("token weights cannot run with pooling 'pooler'")
    vocabulary = len(parts_of(weights, "word")[0])
    if table.shape != (vocabulary,) or table.dtype != np.float32:
        raise ValueError(f"token weights must be float32 of shape ({vocabulary},), not {table.dtype} of {table.shape}")
    if not ((table == 0) | (table >= LIGHTEST) & (table <= HEAVIEST)).all():  # NaN is neither
        raise ValueError(f"every token weight must be between {LIGHTEST:g} and {HEAVIEST:g}, or 0")
    return np.array(table, order="C")


def _check(weights: Stored, name: str, threads: int) -> None:
    for i, part in enumerate(parts_of(weights, name)):
        stored = storable(part)
        if convert(raw(stored), STORED.index(stored.dtype), None, False, threads) > LARGEST_BITS:
            raise NotFinite(name, i)
