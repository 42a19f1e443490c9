"""Lay out plans for the Triton kernels, padded to blocks, with tables of the blocks that each block reads.

Plans without gates can be merged: hidden units read u and earlier hidden units, and z = S u + V h + t. That takes more
products than updating u, and fewer steps wait for another. Zeros widen ranges of channels to multiples of 16, for
16-byte loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.kernels.flow import UNTOUCHED, Plan, stack

Array = NDArray[Any]
MOST_TILES = 40  # weight tiles in the registers of ``flow_chain``
UNIT = 32  # hidden units in a block that ``flow_emit`` reads


class Chain(NamedTuple):
    """The unrolled steps of ``flow_chain``: each step's block of columns; step READERS[i] reads step LINKS[i]."""

    BLOCKS: tuple[int, ...]
    READERS: tuple[int, ...]
    LINKS: tuple[int, ...]


@dataclass(frozen=True)
class LaunchLayout:
    """One launch: arrays by argument name (float32, tables int32), and sizes."""

    arrays: dict[str, Array]
    inputs: int  # D
    outputs: int  # N
    steps: int  # K
    tiles: int
    chunks: int
    columns: int  # C
    pitch: int  # D padded
    dense: bool
    chain: Chain | None = None  # None: not unrolled
    unit: int = UNIT  # hidden units that ``flow_recur`` multiplies at once


def pad_width(width: int) -> int:
    """Return the least power of two >= 16 that holds ``width`` hidden units."""
    return max(16, 1 << (width - 1).bit_length()) if width else 16


def arrange(plans: Sequence[Plan], merge: bool = True) -> list[Plan]:
    """Return plans to launch one by one: stacked neighbours, and separate plans, which update u and have no L.

    A plan with gates is separate; without ``merge`` any plan with steps and a gather is.
    """
    found: list[Plan] = []
    waiting: list[Plan] = []
    for plan in plans:
        separate = plan.R is not None or (not merge and plan.steps > 0 and plan.gather is not None)
        *before, own = _split_prologue(plan, separate)
        waiting += before
        if (separate or before) and waiting:
            found.append(stack(waiting))
            waiting = []
        (found if separate else waiting).append(own)
    return [*found, stack(waiting)] if waiting else found


def count_products(plans: Sequence[Plan]) -> int:
    """Return a row's multiply-adds with weights that are not 0."""
    weights = [a for plan in plans for a in plan.arrays().values() if a.ndim > 1 and a.dtype.kind == "f"]
    return sum(int(np.count_nonzero(a)) for a in weights)


def _split_prologue(plan: Plan, separate: bool) -> tuple[Plan, ...]:
    """Make L a plan of its own if the plan is ``separate``, or if steps read fewer numbers of u than of x."""
    if plan.L is None:
        return (plan,)
    size, none, ranges = len(plan.L), np.zeros((0, 0)), np.zeros((0, 2), np.int32)
    read = plan.width * int(np.diff(plan.reads).sum())
    if not separate and plan.L.size + read >= plan.inputs * (len(plan.c) + plan.outputs):
        return (plan,)
    first = replace(
        plan, L=None, U=np.zeros((0, plan.inputs)), c=np.zeros(0), B=np.zeros((0, 0, 0)), d=none,
        V=np.zeros((plan.inputs, 0)), p=none, R=None, q=None, S=plan.L, gather=None, t=np.zeros(size), reads=ranges,
        writes=ranges,
    )  # fmt: skip
    return first, replace(plan, L=None, m=np.zeros(size), s=np.ones(size))


def split_stacked(plan: Plan) -> tuple[Array, Array, Array, Array]:
    """Return U (K w, D), S (N, D), G (K w, K w) and V (N, K w) of a stacked plan."""
    assert plan.L is not None  # noqa: S101 - for mypy
    order = (plan.reads[:, :1] + np.arange(plan.width)).reshape(len(plan.c))  # rows of a_1 .. a_K
    return plan.L[order], plan.L[: plan.outputs], plan.V[order], plan.V[: plan.outputs]


def is_dense(plan: Plan) -> bool:
    """Return whether an output of a stacked plan reads several inputs but through hidden units."""
    return bool(np.count_nonzero(split_stacked(plan)[1], axis=1).max() > 1)


def lay_out_hidden(plan: Plan, tile: int, chunk: int, reach: int, split: bool = False) -> LaunchLayout:
    """Lay out a stacked plan by ``tile`` hidden units, ``chunk`` outputs and ``reach`` inputs."""
    width, (k, w) = pad_width(plan.width), (plan.steps, plan.width)
    U, S, G, V = split_stacked(plan)
    unit, wide = min(width, UNIT), min(width, UNIT if split else 2 * UNIT)
    blocks, tile_ranges = _columns(_find_spans(U, k), max(tile // width, 1), max(width // tile, 1))
    columns = len(tile_ranges) * tile + (width if width > wide else 0)
    pitch = _round_up(plan.inputs + max(reach, 16), max(reach, 16))
    rows = _round_up(plan.outputs, chunk)
    where = (blocks[:, None] * width + np.arange(w)).reshape(k * w)
    gram, write, read = np.zeros((columns, columns)), np.zeros((rows, columns)), np.zeros((columns, pitch))
    bias = np.zeros(columns)
    read[where, : plan.inputs], bias[where], write[: plan.outputs, where] = U, plan.c, V
    gram[where[:, None], where] = G
    links = [_find_steps(G[step * w : (step + 1) * w], k) for step in range(k)]
    reach_of = [_find_steps(V[start : start + chunk], k) for start in range(0, rows, chunk)]
    arrays = _share_arrays(plan, pitch, rows) | _lay_out_linear(plan, S, pitch, rows) | {
        "tile_ptr": _sixteenths(tile_ranges), "U_ptr": read, "c_ptr": bias, "G_ptr": gram,
        "step_ptr": np.column_stack([blocks * (width // wide), _bounds(links, width // wide)]),
        "link_ptr": _units(blocks, links, width // wide),
        "chunk_ptr": _bounds(reach_of, width // unit),
        "block_ptr": _units(blocks, reach_of, width // unit), "V_ptr": write,
    }  # fmt: skip
    if split:
        arrays |= {
            name: _split_rows(a) for name, a in arrays.items() if name in ("U_ptr", "G_ptr", "B_ptr", "V_ptr", "S_ptr")
        }
    pairs = [(step, j) for step, js in enumerate(links) for j in js]
    chain = Chain(tuple(blocks.tolist()), tuple(step for step, _ in pairs), tuple(j for _, j in pairs))
    few = k > 0 and width <= UNIT and 2 * k + len(chain.LINKS) <= MOST_TILES
    return replace(
        _layout(plan, arrays, len(tile_ranges), rows // chunk, columns, pitch), chain=chain if few else None, unit=wide
    )


def _lay_out_linear(plan: Plan, S: Array, pitch: int, rows: int) -> dict[str, Array]:
    if is_dense(plan):
        return {"S_ptr": np.pad(S, ((0, rows - len(S)), (0, pitch - plan.inputs)))}
    gather = (S != 0).argmax(axis=1).astype(np.int32)
    scale = S[np.arange(len(S)), gather] * plan.s[gather]
    return {"gather_ptr": _pad(gather, rows), "mz_ptr": _pad(plan.m[gather], rows), "sz_ptr": _pad(scale, rows)}


def lay_out_state(plan: Plan, chunk: int, reach: int) -> LaunchLayout:
    """Lay out a separate plan: a step reads ``reach`` channels at a time and writes ``chunk``."""
    assert plan.gather is not None  # noqa: S101 - for mypy
    width, (k, w), block = pad_width(plan.width), (plan.steps, plan.width), max(chunk, reach, 16)
    columns, pitch = k * width, _round_up(plan.inputs + block, block) + 2 * width
    rows = _round_up(plan.outputs, chunk)
    where = (np.arange(k)[:, None] * width + np.arange(w)).reshape(k * w)
    read, bias = np.zeros((columns, pitch)), np.zeros(columns)
    read[where, : plan.inputs], bias[where] = plan.U, plan.c
    shift, shift_bias = np.zeros((pitch, columns)), np.zeros((k, pitch))
    shift[: plan.inputs, where], shift_bias[:, : plan.inputs] = plan.V, plan.p
    arrays = _share_arrays(plan, pitch, rows) | {
        "tile_ptr": _sixteenths(plan.reads), "U_ptr": read, "c_ptr": bias, "span_ptr": _sixteenths(plan.writes),
        "V_ptr": shift, "p_ptr": shift_bias, "gather_ptr": _pad(plan.gather, rows), "sz_ptr": _pad(plan.S, rows),
    }  # fmt: skip
    if plan.R is not None:
        gate, gate_bias = np.zeros((pitch, columns)), np.full((k, pitch), UNTOUCHED)
        gate[: plan.inputs, where], gate_bias[:, : plan.inputs] = plan.R, plan.q
        arrays |= {"R_ptr": gate, "q_ptr": gate_bias}
    return _layout(plan, arrays, k, rows // chunk, columns, pitch)


def _columns(reads: Array, share: int, parts: int) -> tuple[Array, list[tuple[int, int]]]:
    """Return each step's block of columns (K,) and each tile's inputs: of ``share`` steps, or 1 / ``parts`` of one."""
    blocks, ranges = np.zeros(len(reads), np.int32), []
    taken = 0
    for span in dict.fromkeys(map(tuple, reads.tolist())):
        same = [k for k, read in enumerate(reads.tolist()) if tuple(read) == span]
        blocks[same] = taken + np.arange(len(same))
        groups = -(-len(same) // share)
        taken += groups * share
        ranges += [span] * (groups * parts)
    return blocks, ranges


def _find_steps(weights: Array, steps: int) -> list[int]:
    """Return the steps of which ``weights`` (n, K w) read a hidden unit."""
    blocks = np.split(weights, max(1, steps), axis=1)
    return [step for step, block in enumerate(blocks) if block.any()]


def _find_spans(U: Array, steps: int) -> Array:
    """Return (K, 2): the smallest range of inputs that each step reads."""
    found = [np.flatnonzero(rows.any(axis=0)) for rows in np.split(U, max(1, steps))[:steps]]
    return np.array([(each[0], each[-1] + 1) if len(each) else (0, 0) for each in found], np.int32).reshape(steps, 2)


def _share_arrays(plan: Plan, pitch: int, rows: int) -> dict[str, Array]:
    k, w, width = plan.steps, plan.width, pad_width(plan.width)
    inner, bias = np.zeros((k, width, width)), np.zeros((k, width))
    inner[:, :w, :w], bias[:, :w] = plan.B, plan.d
    padded = {"m_ptr": _pad(plan.m, pitch), "s_ptr": _pad(plan.s, pitch), "t_ptr": _pad(plan.t, rows)}
    return padded | {"B_ptr": inner, "d_ptr": bias}


def _layout(plan: Plan, arrays: dict[str, Array], tiles: int, chunks: int, columns: int, pitch: int) -> LaunchLayout:
    kinds = {"f": np.float32, "i": np.int32}
    arrays = {name: np.ascontiguousarray(a, kinds[a.dtype.kind]) for name, a in arrays.items()}
    return LaunchLayout(arrays, plan.inputs, plan.outputs, plan.steps, tiles, chunks, columns, pitch, "S_ptr" in arrays)


def _split_rows(weights: Array) -> Array:
    """Return (2 R, C): each row rounded to TF32, then its rounding error."""
    rows = weights.reshape(-1, max(1, weights.shape[-1]))
    high = ((rows.astype(np.float32).view(np.int32) + 0x1000) & -0x2000).view(np.float32)
    return np.stack([high, rows - high], axis=1).reshape(-1, rows.shape[1])


def _round_up(size: int, block: int) -> int:
    return -(-size // block) * block


def _pad(vector: Array, size: int) -> Array:
    return np.concatenate([vector, np.zeros(size - len(vector), vector.dtype)])


def _sixteenths(ranges: Any) -> Array:
    spans = np.array(ranges, np.int32).reshape(-1, 2)
    return np.column_stack([spans[:, 0] // 16, -(-spans[:, 1] // 16)])


def _bounds(lists: list[list[int]], parts: int) -> Array:
    sizes = np.array([len(items) for items in lists], np.int32) * parts
    ends = np.cumsum(sizes, dtype=np.int32)
    return np.column_stack([ends - sizes, ends])


def _units(blocks: Array, lists: list[list[int]], parts: int) -> Array:
    steps = np.array([k for items in lists for k in items], int)
    return (blocks[steps, None] * parts + np.arange(parts)).reshape(-1)
