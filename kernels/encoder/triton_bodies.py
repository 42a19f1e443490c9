"""The encoder's elementwise passes, attention and first-token pooling as Triton kernels.

Texts are concatenated to N tokens; text i has tokens offset[i]:offset[i+1] (int32). States and products are float32,
float16 or bfloat16; sums, activations and tables are float32. Kernels are never launched with N = 0 or B = 0.
"""
# ruff: noqa: ANN001, ANN201 - Triton's arguments are untyped
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normalised(x, cols, scale_ptr, bias_ptr, D, eps):
    """Return LayerNorm (BD,) of a row x (BD,), which is 0 from D on."""
    inside = cols < D
    centred = tl.where(inside, x - tl.sum(x, axis=0) / D, 0.0)
    variance = tl.sum(centred * centred, axis=0) / D
    inverse = 1.0 / tl.sqrt_rn(variance + eps) + (variance - variance)  # + NaN if the squares overflow
    scale = tl.load(scale_ptr + cols, mask=inside, other=0.0)
    return centred * inverse * scale + tl.load(bias_ptr + cols, mask=inside, other=0.0)


@triton.jit
def embed(
    id_ptr, position_ptr, word_ptr, place_ptr, scale_ptr, bias_ptr, y_ptr, D, eps, BD: tl.constexpr, VEC: tl.constexpr
) -> None:
    """Write y (N, D) = LayerNorm(word[id] + place[position]); id, position: (N,) int32; grid (N,).

    word (vocabulary, D), any float dtype; place (rows, D) float32. BD: a power of two >= D; VEC divides D.
    """
    row, cols, pitch = tl.program_id(0).to(tl.int64), tl.arange(0, BD), D // VEC * VEC
    inside = cols < pitch
    word = tl.load(word_ptr + tl.load(id_ptr + row).to(tl.int64) * pitch + cols, mask=inside, other=0.0)
    place = tl.load(place_ptr + tl.load(position_ptr + row).to(tl.int64) * pitch + cols, mask=inside, other=0.0)
    y = normalised(word.to(tl.float32) + place, cols, scale_ptr, bias_ptr, pitch, eps)
    tl.store(y_ptr + row * pitch + cols, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_norm(
    x_ptr, residual_ptr, add_ptr, scale_ptr, bias_ptr, y_ptr, D, eps, BD: tl.constexpr, VEC: tl.constexpr
) -> None:
    """Write y (N, D) = LayerNorm(x + add + residual); add (D,); grid (N,)."""
    row, cols, pitch = tl.program_id(0).to(tl.int64), tl.arange(0, BD), D // VEC * VEC
    inside = cols < pitch
    x = tl.load(x_ptr + row * pitch + cols, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(add_ptr + cols, mask=inside, other=0.0)
    x += tl.load(residual_ptr + row * pitch + cols, mask=inside, other=0.0).to(tl.float32)
    y = normalised(x, cols, scale_ptr, bias_ptr, pitch, eps)
    tl.store(y_ptr + row * pitch + cols, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def apply_activation(v, ACT: tl.constexpr):
    """Return the activation ACT of float32 numbers."""
    if ACT == "gelu":
        return 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        twice = 1.5957691216057308 * (v + 0.044715 * v * v * v)
        decay = tl.exp(-tl.abs(twice))  # at most 1: no overflow
        return v * tl.where(twice < 0.0, decay, 1.0) / (1.0 + decay)
    else:
        return tl.maximum(v, 0.0)


@triton.jit
def activate(x_ptr, add_ptr, D, ACT: tl.constexpr, BI: tl.constexpr, VEC: tl.constexpr) -> None:
    """Write x (N, D) <- activation(x + add); add (D,); grid (N, chunks of BI columns)."""
    row, cols, pitch = tl.program_id(0).to(tl.int64), tl.program_id(1) * BI + tl.arange(0, BI), D // VEC * VEC
    inside = cols < pitch
    at = x_ptr + row * pitch + cols
    v = tl.load(at, mask=inside, other=0.0).to(tl.float32) + tl.load(add_ptr + cols, mask=inside, other=0.0)
    tl.store(at, apply_activation(v, ACT).to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["N"])
def multiply_activate(
    x_ptr, weight_ptr, add_ptr, y_ptr, N, D, width, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, ACT: tl.constexpr, DOT: tl.constexpr, VEC: tl.constexpr,
) -> None:  # fmt: skip
    """Write y (N, width) = activation(x W^T + add); x (N, D), W (width, D), add (width,); grid (blocks of y,).

    BK divides D, VEC divides width. GROUP neighbouring blocks of BM rows share the weights of BN columns in the
    GPU's L2 cache. DOT: dtype of operands.
    """
    depth, pitch = D // BK * BK, width // VEC * VEC
    per_group = GROUP * tl.cdiv(pitch, BN)
    first = tl.program_id(0) // per_group * GROUP
    together = tl.minimum(tl.cdiv(N, BM) - first, GROUP)
    place = tl.program_id(0) % per_group
    rows = (first + place % together) * BM + tl.arange(0, BM)
    cols, inner = place // together * BN + tl.arange(0, BN), tl.arange(0, BK)
    # rows and columns outside are computed from the last one, and not stored
    x_at = x_ptr + tl.minimum(rows, N - 1).to(tl.int64)[:, None] * depth + inner[None, :]
    w_at = weight_ptr + tl.minimum(cols, pitch - 1)[:, None] * depth + inner[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        acc = tl.dot(tl.load(x_at + start).to(DOT), tl.trans(tl.load(w_at + start).to(DOT)), acc)
    acc = apply_activation(acc + tl.load(add_ptr + tl.minimum(cols, pitch - 1))[None, :], ACT)
    to = y_ptr + rows.to(tl.int64)[:, None] * pitch + cols[None, :]
    tl.store(to, acc.to(y_ptr.dtype.element_ty), mask=(rows < N)[:, None] & (cols < pitch)[None, :])


@triton.jit(do_not_specialize=["blocks"])
def attend(
    qkv_ptr, offset_ptr, y_ptr, heads, head, blocks, scale, BM: tl.constexpr, BN: tl.constexpr, HD: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, VEC: tl.constexpr,
) -> None:  # fmt: skip
    """Write y (N, D) = softmax(Q K^T scale) V within each text; qkv (N, 3 D) = [Q, K, V], each [head][channel].

    grid (B x heads x blocks of BM queries of the longest text,). BN keys at a time, with a running maximum and sum
    (Milakov & Gimelshein 2018). HD: a power of two >= head. DOT: dtype of operands, PRECISION their
    ``input_precision``.
    """
    part = tl.program_id(0) // blocks  # other axes take 65,535
    own, index = part % heads, part // heads
    first = tl.load(offset_ptr + index)
    length = tl.load(offset_ptr + index + 1) - first
    row = tl.program_id(0) % blocks * BM
    if row < length:
        queries, channels, width = row + tl.arange(0, BM), tl.arange(0, HD), head // VEC * VEC
        dim = heads * width
        inside, live = (channels < width)[None, :], (queries < length)[:, None]
        text = qkv_ptr + first.to(tl.int64) * 3 * dim + own * width
        q = tl.load(text + queries[:, None] * (3 * dim) + channels[None, :], mask=live & inside, other=0.0).to(DOT)
        best = tl.full((BM,), float("-inf"), tl.float32)
        total, acc = tl.zeros((BM,), tl.float32), tl.zeros((BM, HD), tl.float32)
        for start in range(0, length, BN):
            keys = start + tl.arange(0, BN)
            known = keys < length
            at = text + dim + keys[:, None] * (3 * dim) + channels[None, :]
            k = tl.load(at, mask=known[:, None] & inside, other=0.0).to(DOT)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)  # log2(e)
            scores = tl.where(known[None, :], scores, float("-inf"))
            higher = tl.maximum(best, tl.max(scores, axis=1))
            weights, decay = tl.exp2(scores - higher[:, None]), tl.exp2(best - higher)
            v = tl.load(at + dim, mask=known[:, None] & inside, other=0.0).to(DOT)
            acc = tl.dot(weights.to(DOT), v, acc * decay[:, None], input_precision=PRECISION)
            total, best = total * decay + tl.sum(weights, axis=1), higher
        y = (acc / total[:, None]).to(y_ptr.dtype.element_ty)
        to = y_ptr + first.to(tl.int64) * dim + own * width
        tl.store(to + queries[:, None] * dim + channels[None, :], y, mask=live & inside)


@triton.jit
def pool_first(x_ptr, offset_ptr, y_ptr, D, BD: tl.constexpr, VEC: tl.constexpr) -> None:
    """Write y (B, D) float32: each text's first state of x (N, D), 0 for an empty text; grid (B,)."""
    row, cols, pitch = tl.program_id(0).to(tl.int64), tl.arange(0, BD), D // VEC * VEC
    first, inside = tl.load(offset_ptr + row), cols < pitch
    filled = cols < tl.where(first < tl.load(offset_ptr + row + 1), pitch, 0)
    x = tl.load(x_ptr + first.to(tl.int64) * pitch + cols, mask=filled, other=0.0)
    tl.store(y_ptr + row * pitch + cols, x.to(tl.float32), mask=inside)
