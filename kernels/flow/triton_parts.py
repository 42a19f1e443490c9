"""Phases shared by the flow's Triton kernels.

SCHEME of products: ``fma``, exact float32, if BM = 1; ``tf32x3``, an ``input_precision`` of ``tl.dot``; ``split``, the
same, each row of weights followed by its rounding error.
"""
# ruff: noqa: ANN001, ANN201 - Triton's arguments are untyped
# ruff: noqa: RUF005 - Triton unpacks no tuples
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def zero(M: tl.constexpr, N: tl.constexpr, C: tl.constexpr, SCHEME: tl.constexpr):
    """Return zeros that accumulate (M, N) sums; with fma, (N, C) terms, which ``total`` sums."""
    if SCHEME == "fma":
        return tl.zeros((N, C), tl.float32)
    else:
        return tl.zeros((M, N), tl.float32)


@triton.jit
def multiply(acc, a, w, SCHEME: tl.constexpr):
    """Return acc + a (M, C) times the transpose of w (N, C)."""
    if SCHEME == "fma":
        return acc + a * w
    else:
        return tl.dot(a, tl.trans(w), acc, input_precision=SCHEME)


@triton.jit
def add(acc, a, w_ptr, rows, cols, pitch, SCHEME: tl.constexpr):
    """Return acc + a (M, C) times the transpose of w[rows, cols] (N, C); w has rows of ``pitch``."""
    if SCHEME == "split":
        at = w_ptr + 2 * rows[:, None] * pitch + cols[None, :]
        high, low = tl.load(at), tl.load(at + pitch)
        a_high = ((a.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        found = tl.zeros_like(acc)  # summed apart: the tensor cores cut sums off instead of rounding them
        found = multiply(found, a - a_high, high, "tf32")
        found = multiply(found, a_high, low, "tf32")
        return acc + multiply(found, a_high, high, "tf32")
    else:
        return multiply(acc, a, tl.load(w_ptr + rows[:, None] * pitch + cols[None, :]), SCHEME)


@triton.jit
def total(acc, SCHEME: tl.constexpr):
    """Return the accumulated sums (M, N)."""
    if SCHEME == "fma":
        return tl.sum(acc, axis=1)[None, :]
    else:
        return acc


@triton.jit
def inputs(source, row, cols, BM: tl.constexpr, BC: tl.constexpr, POOL: tl.constexpr):
    """Return (BM, BC) float32: columns ``cols`` of rows from ``row`` on, 0 outside x.

    POOL 0: x (B, D), any float dtype. Else BM = 1 and x is hidden states (layers, tokens, D). Text i is their mean over
    tokens offset[i]:offset[i+1] and layers, POOL tokens at a time. With id (tokens,) int32 and weight (vocabulary,):
    sum(w h) / sum(w), w = weight[id]. share (layers,) multiplies layers.
    """
    x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, layers, layer_pitch, pitch, B = source
    inside = cols < pitch
    if POOL == 0:
        at, inside = locate(row + tl.arange(0, BM), cols, B, pitch)
        return tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    else:
        first, last = tl.load(offset_ptr + row), tl.load(offset_ptr + row + 1)
        total, mass = tl.zeros((POOL, BC), tl.float32), tl.zeros((POOL,), tl.float32)
        for layer in range(0, layers):
            for start in range(first, last, POOL):
                tokens = start + tl.arange(0, POOL)
                at = x_ptr + layer * layer_pitch.to(tl.int64) + tokens.to(tl.int64)[:, None] * pitch + cols[None, :]
                h = tl.load(at, mask=(tokens < last)[:, None] & inside[None, :], other=0.0).to(tl.float32)
                if share_ptr is not None:
                    h *= tl.load(share_ptr + layer)
                if weight_ptr is None:
                    total += h
                else:
                    ids = tl.load(id_ptr + tokens, mask=tokens < last, other=0)
                    w = tl.load(weight_ptr + ids, mask=tokens < last, other=0.0)
                    total += w[:, None] * h
                    mass += w
        pooled = tl.sum(total, axis=0)[None, :]
        if weight_ptr is None:
            return pooled / (tl.maximum(last - first, 1) * layers).to(tl.float32)
        else:
            return pooled / tl.where(first < last, tl.sum(mass, axis=0), 1.0)


@triton.jit
def load_centred(source, centre, row, cols, BM: tl.constexpr, BC: tl.constexpr, POOL: tl.constexpr):
    """Return (BM, BC): (x - m) s at ``cols``; centre = (m, s), padded with zeros."""
    m_ptr, s_ptr = centre
    x = inputs(source, row, cols, BM, BC, POOL)
    return (x - tl.load(m_ptr + cols)[None, :]) * tl.load(s_ptr + cols)[None, :]


@triton.jit
def read(
    source, centre, weights, row, tile,
    BM: tl.constexpr, HB: tl.constexpr, BK: tl.constexpr, SCHEME: tl.constexpr, POOL: tl.constexpr,
):  # fmt: skip
    """Return (BM, HB): a = U u + c in the columns of ``tile``.

    weights = (tile (tiles, 2): range of inputs in units of 16, U (C, U_pitch), U_pitch, c (C,)).
    """
    tile_ptr, U_ptr, U_pitch, c_ptr = weights
    low, high = tl.load(tile_ptr + 2 * tile) * 16, tl.load(tile_ptr + 2 * tile + 1) * 16
    own = tile * HB + tl.arange(0, HB)
    acc = zero(BM, HB, BK, SCHEME)
    for start in range(low, high, BK):
        cols = start + tl.arange(0, BK)
        u = load_centred(source, centre, row, cols, BM, BK, POOL)
        acc = add(acc, u, U_ptr, own, cols, U_pitch, SCHEME)
    return total(acc, SCHEME) + tl.load(c_ptr + own)[None, :]


@triton.jit
def layer(a, weights, k, WP: tl.constexpr, BM: tl.constexpr, SCHEME: tl.constexpr):
    """Return (BM, WP): relu(B_k a + d_k) of a (BM, WP); weights = (B (K, WP, WP), d (K, WP))."""
    B_ptr, d_ptr = weights
    units = tl.arange(0, WP)
    h = total(add(zero(BM, WP, WP, SCHEME), a, B_ptr, k * WP + units, units, WP, SCHEME), SCHEME)
    return tl.maximum(h + tl.load(d_ptr + k * WP + units)[None, :], 0.0)


@triton.jit
def layer_wide(a_ptr, h_ptr, C, weights, k, WP: tl.constexpr, UB: tl.constexpr, BM: tl.constexpr, SCHEME: tl.constexpr):
    """Write h = relu(B_k a + d_k) for any WP; a, h (BM, WP) are scratch rows of C columns."""
    B_ptr, d_ptr = weights
    rows, units = tl.arange(0, BM)[:, None] * C, tl.arange(0, UB)
    tl.debug_barrier()
    for part in range(0, WP, UB):
        own = part + units
        acc = zero(BM, UB, UB, SCHEME)
        for at in range(0, WP, UB):
            a = tl.load(a_ptr + rows + (at + units)[None, :])
            acc = add(acc, a, B_ptr, k * WP + own, at + units, WP, SCHEME)
        h = tl.maximum(total(acc, SCHEME) + tl.load(d_ptr + k * WP + own)[None, :], 0.0)
        tl.store(h_ptr + rows + own[None, :], h)


@triton.jit
def recur(a_ptr, steps, links, inner, C, BM: tl.constexpr, WP: tl.constexpr, UB: tl.constexpr, SCHEME: tl.constexpr):
    """Replace a (BM, C) by h, in ``steps`` steps. If WP > UB, the last WP columns are scratch.

    links = (step (K, 3): first block of UB columns, range in link; link: earlier blocks that a step reads; G (C, C)).
    """
    step_ptr, link_ptr, G_ptr = links
    rows, units = tl.arange(0, BM)[:, None] * C, tl.arange(0, UB)
    for k in range(0, steps):
        block = tl.load(step_ptr + 3 * k) * UB
        for part in range(0, WP, UB):
            own = block + part + units
            a = tl.load(a_ptr + rows + own[None, :])
            acc = zero(BM, UB, UB, SCHEME)
            for at in tl.range(tl.load(step_ptr + 3 * k + 1), tl.load(step_ptr + 3 * k + 2), num_stages=1):
                other = tl.load(link_ptr + at) * UB + units
                h = tl.load(a_ptr + rows + other[None, :])
                acc = add(acc, h, G_ptr, own, other, C, SCHEME)
            a = tl.maximum(a + total(acc, SCHEME), 0.0)
            if WP == UB:
                tl.debug_barrier()
                tl.store(a_ptr + rows + own[None, :], layer(a, inner, k, WP, BM, SCHEME))
            else:
                tl.store(a_ptr + rows + (C - WP + part + units)[None, :], a)
        if WP > UB:
            layer_wide(a_ptr + C - WP, a_ptr + block, C, inner, k, WP, UB, BM, SCHEME)
        tl.debug_barrier()


@triton.jit
def chain(
    a_ptr, G_ptr, inner, V_ptr, own, C,
    BM: tl.constexpr, BN: tl.constexpr, WP: tl.constexpr, SCHEME: tl.constexpr, BLOCKS: tl.constexpr,
    READERS: tl.constexpr, LINKS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Return (BM, BN): V h in the channels ``own`` from a (BM, C), as ``recur`` and ``write``, unrolled, for WP <= 32.

    BLOCKS, READERS (ascending), LINKS: as in ``triton_layout.Chain``. Weights are loaded AHEAD steps
    early; h stays in registers.
    """
    rows, units = tl.arange(0, BM)[:, None] * C, tl.arange(0, WP)
    weights, biases, grams, writes, before, hidden = (), (), (), (), (), ()
    B_ptr, d_ptr = inner
    z = zero(BM, BN, WP, SCHEME)
    for coming in tl.static_range(len(BLOCKS) + AHEAD):
        if coming < len(BLOCKS):
            columns = BLOCKS[coming] * WP + units
            weights = weights + (tl.load(B_ptr + (coming * WP + units)[:, None] * WP + units[None, :]),)
            biases = biases + (tl.load(d_ptr + coming * WP + units)[None, :],)
            writes = writes + (tl.load(V_ptr + own[:, None] * C + columns[None, :]),)
            before = before + (tl.load(a_ptr + rows + columns[None, :]),)
            for at in tl.static_range(len(LINKS)):
                if READERS[at] == coming:
                    other = BLOCKS[LINKS[at]] * WP + units
                    grams = grams + (tl.load(G_ptr + columns[:, None] * C + other[None, :]),)
        if coming >= AHEAD:
            acc = zero(BM, WP, WP, SCHEME)
            for at in tl.static_range(len(LINKS)):
                if READERS[at] + AHEAD == coming:
                    acc = multiply(acc, hidden[LINKS[at]], grams[at], SCHEME)
            a = tl.maximum(before[coming - AHEAD] + total(acc, SCHEME), 0.0)
            h = total(multiply(zero(BM, WP, WP, SCHEME), a, weights[coming - AHEAD], SCHEME), SCHEME)
            h = tl.maximum(h + biases[coming - AHEAD], 0.0)
            z = multiply(z, h, writes[coming - AHEAD], SCHEME)
            hidden = hidden + (h,)
    return total(z, SCHEME)


@triton.jit
def write(outs, h_ptr, chunk, own, C, BM: tl.constexpr, BN: tl.constexpr, WP: tl.constexpr, SCHEME: tl.constexpr):
    """Return (BM, BN): V h in the channels ``own`` of ``chunk``.

    outs = (chunk (chunks, 2): range in block; block: blocks of hidden units to read; V (N, C)).
    """
    UB: tl.constexpr = min(WP, 32)
    chunk_ptr, block_ptr, V_ptr = outs
    rows, units = tl.arange(0, BM)[:, None] * C, tl.arange(0, UB)
    acc = zero(BM, BN, UB, SCHEME)
    for at in range(tl.load(chunk_ptr + 2 * chunk), tl.load(chunk_ptr + 2 * chunk + 1)):
        block = tl.load(block_ptr + at) * UB + units
        h = tl.load(h_ptr + rows + block[None, :])
        acc = add(acc, h, V_ptr, own, block, C, SCHEME)
    return total(acc, SCHEME)


@triton.jit
def load_gathered(x_ptr, gather_ptr, row, start, pitch, B, BM: tl.constexpr, BN: tl.constexpr):
    """Return (BM, BN) float32: rows from ``row`` on of x (B, pitch), channels gather[start:start + BN].

    Loaded as a vector: of a matrix some Tritons give a warp 32 rows.
    """
    at = tl.arange(0, BM * BN)
    rows, cols = row + at // BN, tl.load(gather_ptr + start + at % BN)
    return tl.reshape(tl.load(x_ptr + rows * pitch + cols, mask=rows < B, other=0.0).to(tl.float32), (BM, BN))


@triton.jit
def pass_on(
    source, centre, linear, row, start, D,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SCHEME: tl.constexpr, POOL: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Return (BM, BN): S u in the channels from ``start`` on.

    linear = (gather (N,), m[gather], S s[gather], S (N, S_pitch), S_pitch); DENSE uses only S and S_pitch.
    """
    gather_ptr, mz_ptr, sz_ptr, S_ptr, S_pitch = linear
    own = start + tl.arange(0, BN)
    if DENSE:
        acc = zero(BM, BN, BK, SCHEME)
        for first in range(0, D, BK):
            cols = first + tl.arange(0, BK)
            u = load_centred(source, centre, row, cols, BM, BK, POOL)
            acc = add(acc, u, S_ptr, own, cols, S_pitch, SCHEME)
        return total(acc, SCHEME)
    else:
        if POOL == 0:
            x = load_gathered(source[0], gather_ptr, row, start, source[7], source[8], BM, BN)
        else:
            x = inputs(source, row, tl.load(gather_ptr + own), BM, BN, POOL)
        return (x - tl.load(mz_ptr + own)[None, :]) * tl.load(sz_ptr + own)[None, :]


@triton.jit
def locate(rows, cols, B, pitch):
    """Return places of ``rows`` x ``cols`` in a matrix (B, pitch), and the mask of those inside."""
    inside = (rows < B)[:, None] & (cols < pitch)[None, :]
    return rows[:, None] * pitch + cols[None, :], inside


@triton.jit
def store(z_ptr, z, row, chunk, B, pitch, BM: tl.constexpr, BN: tl.constexpr):
    """Write the tile z (BM, BN) from ``row`` and column ``chunk`` BN on."""
    at, inside = locate(row + tl.arange(0, BM), chunk * BN + tl.arange(0, BN), B, pitch)
    tl.store(z_ptr + at, z, mask=inside)
