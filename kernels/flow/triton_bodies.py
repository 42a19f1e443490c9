"""The folded flow as Triton kernels. Stacked plans run in three phases:

    read    a = U u + c, u = (x - m) s     (B, C), a tile of HB columns at a time
    recur   h_k = relu(B_k relu(a_k + sum_j G_kj h_j) + d_k), step by step
    emit    z = S u + V h + t              (B, N), a chunk of BN channels at a time

``flow_read``, ``flow_recur`` and ``flow_emit`` are the phases. For few rows ``flow_chain`` is the last two at once,
unrolled, and repeats all steps for each chunk. ``flow_state`` updates u step by step.

D inputs, N outputs, K steps of a width padded to WP, a power of two; C columns of hidden units in blocks of UB, at most
32, and 64 in ``flow_recur``. Pointers are float32 with contiguous rows, tables int32. VEC divides D and N: the compiler
can widen loads.
Specialising kernels on B or ``layer_pitch`` would change the order of sums. B is never 0.
"""
# ruff: noqa: ANN001 - Triton's arguments are untyped
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from fastflow.kernels.flow.triton_parts import (
    add,
    chain,
    inputs,
    layer,
    layer_wide,
    load_centred,
    load_gathered,
    locate,
    pass_on,
    read,
    recur,
    store,
    total,
    write,
    zero,
)


@triton.jit(do_not_specialize=["B", "layer_pitch"])
def flow_read(
    x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, a_ptr, m_ptr, s_ptr, tile_ptr, U_ptr, c_ptr,
    B, D, layers, layer_pitch, C, pitch, tiles,
    BM: tl.constexpr, BK: tl.constexpr, HB: tl.constexpr, SCHEME: tl.constexpr, VEC: tl.constexpr, POOL: tl.constexpr,
) -> None:  # fmt: skip
    """Write a (rows padded to whole blocks, C); grid (blocks of BM rows x tiles,)."""
    source = (x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, layers, layer_pitch // VEC * VEC, D // VEC * VEC, B)
    row, tile = (tl.program_id(0) // tiles).to(tl.int64) * BM, tl.program_id(0) % tiles
    a = read(source, (m_ptr, s_ptr), (tile_ptr, U_ptr, pitch, c_ptr), row, tile, BM, HB, BK, SCHEME, POOL)
    tl.store(a_ptr + (row + tl.arange(0, BM))[:, None] * C + tile * HB + tl.arange(0, HB)[None, :], a)


@triton.jit
def flow_recur(
    a_ptr, step_ptr, link_ptr, G_ptr, B_ptr, d_ptr, steps, C,
    BM: tl.constexpr, WP: tl.constexpr, UB: tl.constexpr, SCHEME: tl.constexpr,
) -> None:  # fmt: skip
    """Replace a by h; grid (blocks of BM rows,)."""
    a_ptr += tl.program_id(0).to(tl.int64) * BM * C
    recur(a_ptr, steps, (step_ptr, link_ptr, G_ptr), (B_ptr, d_ptr), C, BM, WP, UB, SCHEME)


@triton.jit(do_not_specialize=["B", "layer_pitch"])
def flow_emit(
    x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, z_ptr, a_ptr, m_ptr, s_ptr, chunk_ptr, block_ptr, V_ptr, t_ptr,
    S_ptr, gather_ptr, mz_ptr, sz_ptr, B, D, N, layers, layer_pitch, C, pitch, chunks,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WP: tl.constexpr, SCHEME: tl.constexpr,
    VEC: tl.constexpr, DENSE: tl.constexpr, POOL: tl.constexpr,
) -> None:  # fmt: skip
    """Write z (B, N) from h, which lies in a; grid (blocks of BM rows x chunks,)."""
    source = (x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, layers, layer_pitch // VEC * VEC, D // VEC * VEC, B)
    linear = (gather_ptr, mz_ptr, sz_ptr, S_ptr, pitch)
    row, chunk = (tl.program_id(0) // chunks).to(tl.int64) * BM, tl.program_id(0) % chunks
    own = chunk * BN + tl.arange(0, BN)
    z = write((chunk_ptr, block_ptr, V_ptr), a_ptr + row * C, chunk, own, C, BM, BN, WP, SCHEME)
    z += tl.load(t_ptr + own)[None, :]
    z += pass_on(source, (m_ptr, s_ptr), linear, row, chunk * BN, D, BM, BN, BK, SCHEME, POOL, DENSE)
    store(z_ptr, z, row, chunk, B, N // VEC * VEC, BM, BN)


@triton.jit(do_not_specialize=["B", "layer_pitch"])
def flow_chain(
    x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, z_ptr, a_ptr, m_ptr, s_ptr, G_ptr, B_ptr, d_ptr,
    V_ptr, t_ptr, S_ptr, gather_ptr, mz_ptr, sz_ptr,
    B, D, N, layers, layer_pitch, C, pitch, chunks,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WP: tl.constexpr, SCHEME: tl.constexpr,
    VEC: tl.constexpr, DENSE: tl.constexpr, POOL: tl.constexpr, BLOCKS: tl.constexpr,
    READERS: tl.constexpr, LINKS: tl.constexpr, AHEAD: tl.constexpr,
) -> None:  # fmt: skip
    """Write z (B, N) from a; grid as ``flow_emit``."""
    source = (x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, layers, layer_pitch // VEC * VEC, D // VEC * VEC, B)
    linear = (gather_ptr, mz_ptr, sz_ptr, S_ptr, pitch)
    row, chunk = (tl.program_id(0) // chunks).to(tl.int64) * BM, tl.program_id(0) % chunks
    own = chunk * BN + tl.arange(0, BN)
    z = pass_on(source, (m_ptr, s_ptr), linear, row, chunk * BN, D, BM, BN, BK, SCHEME, POOL, DENSE)
    z += tl.load(t_ptr + own)[None, :]
    z += chain(a_ptr + row * C, G_ptr, (B_ptr, d_ptr), V_ptr, own, C, BM, BN, WP, SCHEME, BLOCKS, READERS, LINKS, AHEAD)
    store(z_ptr, z, row, chunk, B, N // VEC * VEC, BM, BN)


@triton.jit(do_not_specialize=["B"])
def flow_state(
    x_ptr, z_ptr, scratch_ptr, m_ptr, s_ptr, tile_ptr, U_ptr, c_ptr, B_ptr, d_ptr,
    span_ptr, V_ptr, R_ptr, p_ptr, q_ptr, t_ptr, gather_ptr, sz_ptr,
    B, D, N, steps, C, pitch,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WP: tl.constexpr, SCHEME: tl.constexpr,
    VEC: tl.constexpr, GATED: tl.constexpr,
) -> None:  # fmt: skip
    """Map x (B, D) to z (B, N) by steps that update u.

    scratch (programs, BM, pitch) holds u and, in its last 2 WP columns, hidden units. Step k reads range tile[k] of u,
    then sets u <- (u + V h + p) sigmoid(R h + q) in span[k], GATED or without the sigmoid; units of 16. V, R:
    (pitch, C); p, q: (K, pitch).
    """
    UB: tl.constexpr = min(WP, 32)
    source, inner, units = (x_ptr, x_ptr, None, None, None, 1, 0, D // VEC * VEC, B), (B_ptr, d_ptr), tl.arange(0, UB)
    u_ptr = scratch_ptr + tl.program_id(0).to(tl.int64) * BM * pitch
    rows, r_ptr, h_ptr = tl.arange(0, BM)[:, None] * pitch, u_ptr + pitch - 2 * WP, u_ptr + pitch - WP
    for part in range(tl.program_id(0), tl.cdiv(B, BM), tl.num_programs(0)):
        row = part * tl.full((), BM, tl.int64)  # rows times channels may exceed 32 bits
        tl.debug_barrier()
        for start in range(0, pitch - 2 * WP, BN):
            cols = start + tl.arange(0, BN)
            tl.store(u_ptr + rows + cols[None, :], load_centred(source, (m_ptr, s_ptr), row, cols, BM, BN, 0))
        tl.debug_barrier()
        for k in range(0, steps):
            h = tl.zeros((BM, UB), tl.float32)
            for unit in range(0, WP, UB):
                own = k * WP + unit + units
                acc = zero(BM, UB, BK, SCHEME)
                for start in range(tl.load(tile_ptr + 2 * k) * 16, tl.load(tile_ptr + 2 * k + 1) * 16, BK):
                    cols = start + tl.arange(0, BK)
                    u = tl.load(u_ptr + rows + cols[None, :])
                    acc = add(acc, u, U_ptr, own, cols, pitch, SCHEME)
                a = tl.maximum(total(acc, SCHEME) + tl.load(c_ptr + own)[None, :], 0.0)
                if WP == UB:
                    h = layer(a, inner, k, WP, BM, SCHEME)
                else:
                    tl.store(r_ptr + rows + (unit + units)[None, :], a)
            if WP > UB:
                layer_wide(r_ptr, h_ptr, pitch, inner, k, WP, UB, BM, SCHEME)
            tl.debug_barrier()
            for start in range(tl.load(span_ptr + 2 * k) * 16, tl.load(span_ptr + 2 * k + 1) * 16, BN):
                cols = start + tl.arange(0, BN)
                shift, gate = zero(BM, BN, UB, SCHEME), zero(BM, BN, UB, SCHEME)
                for unit in range(0, WP, UB):
                    if WP > UB:
                        h = tl.load(h_ptr + rows + (unit + units)[None, :])
                    shift = add(shift, h, V_ptr, cols, k * WP + unit + units, C, SCHEME)
                    if GATED:
                        gate = add(gate, h, R_ptr, cols, k * WP + unit + units, C, SCHEME)
                shift = total(shift, SCHEME) + tl.load(p_ptr + k * pitch + cols)[None, :]
                u = tl.load(u_ptr + rows + cols[None, :]) + shift
                if GATED:
                    opening = total(gate, SCHEME) + tl.load(q_ptr + k * pitch + cols)[None, :]
                    decay = tl.exp(-tl.abs(opening))
                    u = u * tl.where(opening < 0.0, decay, 1.0) / (1.0 + decay)
                tl.store(u_ptr + rows + cols[None, :], u)
            tl.debug_barrier()
        for chunk in range(0, tl.cdiv(N, BN)):
            out = chunk * BN + tl.arange(0, BN)
            u = load_gathered(u_ptr, gather_ptr, 0, chunk * BN, pitch, BM, BM, BN)
            z = u * tl.load(sz_ptr + out)[None, :] + tl.load(t_ptr + out)[None, :]
            store(z_ptr, z, row, chunk, B, N // VEC * VEC, BM, BN)


@triton.jit(do_not_specialize=["B", "layer_pitch"])
def pool_mean(
    x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, z_ptr, B, D, layers, layer_pitch,
    BN: tl.constexpr, VEC: tl.constexpr, POOL: tl.constexpr,
) -> None:  # fmt: skip
    """Write means (B, D) of hidden states (layers, tokens, D), as ``inputs`` pools; grid (B, chunks of BN channels)."""
    source = (x_ptr, offset_ptr, id_ptr, weight_ptr, share_ptr, layers, layer_pitch // VEC * VEC, D // VEC * VEC, B)
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = inputs(source, row, chunk * BN + tl.arange(0, BN), 1, BN, POOL)
    store(z_ptr, x, row, chunk, B, D // VEC * VEC, 1, BN)


@triton.jit(do_not_specialize=["B"])
def unit_rows(z_ptr, B, N, BM: tl.constexpr, BN: tl.constexpr, VEC: tl.constexpr) -> None:
    """Divide rows of z (B, N) by max(|z|, 1e-12), in place; grid (blocks of BM rows,)."""
    rows, squares = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM), tl.zeros((BM,), tl.float32)
    for own in range(0, N, BN):
        at, inside = locate(rows, own + tl.arange(0, BN), B, N // VEC * VEC)
        z = tl.load(z_ptr + at, mask=inside, other=0.0)
        squares += tl.sum(z * z, axis=1)
    factor = 1.0 / tl.maximum(tl.sqrt_rn(squares), 1e-12)
    for own in range(0, N, BN):
        at, inside = locate(rows, own + tl.arange(0, BN), B, N // VEC * VEC)
        tl.store(z_ptr + at, tl.load(z_ptr + at, mask=inside, other=0.0) * factor[:, None], mask=inside)
