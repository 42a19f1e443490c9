"""The folded plan in plain PyTorch: the strongest baselines without kernels of our own.

Zero blocks are skipped, neighbouring products that share their columns are one, results are written in place where
PyTorch allows it. float32 (B, D) -> (B, N), sums in float32 as the BLAS in use makes them; B = 0 gives (0, N).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastflow.kernels.flow.plan import Plan
from fastflow.plan.in_place import LARGEST, divides

Function = Callable[[Tensor], Tensor]
Array = NDArray[Any]


def folded(plans: Sequence[Plan], device: str) -> Function:
    """Float64 ``plans`` as they are, in order: hidden-space form for additive couplings, state form for affine ones."""
    return chain([(_hidden if plan.form == "hidden" else _state)(plan, device) for plan in plans])


def folded_state(plans: Sequence[Plan], device: str) -> Function | None:
    """The same with every additive plan in state form, u <- u + P_k h_k; None if there is none that can be."""
    turned = [state_form(plan) or plan for plan in plans]
    if not any(plan.form == "state" and plan.R is None for plan in turned):
        return None
    return folded(turned, device)


def state_form(plan: Plan) -> Plan | None:
    """A hidden ``plan`` as one in state form without gates, whether or not it takes fewer products.

    None if S is no diagonal after a permutation, or if its entries or V / S leave the range of float32.
    """
    if plan.form != "hidden" or plan.gather is None or not plan.steps:
        return None
    if sorted(plan.gather) != list(range(plan.state)) or not divides(plan.S):
        return None
    V = np.zeros_like(plan.V)
    V[plan.gather] = plan.V / plan.S[:, None]
    if np.abs(V).max() > LARGEST:
        return None
    written = [plan.gather[low:high] for low, high in plan.writes]
    writes = np.array([(rows.min(), rows.max() + 1) for rows in written], np.int32)
    return replace(plan, form="state", G=None, V=V, p=np.zeros((plan.steps, plan.state), V.dtype), writes=writes)


def chain(parts: Sequence[Function]) -> Function:
    """The functions in sequence."""
    if len(parts) == 1:
        return parts[0]

    def run(x: Tensor) -> Tensor:
        for part in parts:
            x = part(x)
        return x

    return run


def _tensor(array: Array, device: str) -> Tensor:
    return torch.tensor(np.ascontiguousarray(array), device=device).float()


def _right(matrix: Array, device: str) -> Tensor:
    """(n, m) -> the (m, n) right factor of x @ matrix.T, contiguous."""
    return _tensor(matrix.T, device)


def _prologue(plan: Plan, device: str) -> Function:
    """x -> u = L ((x - m) s), a new tensor (B, M), in one operation."""
    if plan.L is not None:
        matrix, bias = _right(plan.L * plan.s, device), _tensor(-plan.L @ (plan.m * plan.s), device)
        return lambda x: torch.addmm(bias, x, matrix)
    scale, shift = _tensor(plan.s, device), _tensor(-plan.m * plan.s, device)
    return lambda x: torch.addcmul(shift, x, scale)


def _epilogue(plan: Plan, device: str, scale: Array, shift: Array) -> Function:
    """u -> S (scale u + shift) + t, a new tensor (B, N)."""
    if plan.gather is None:
        matrix, offset = _right(plan.S * scale, device), _tensor(plan.t + plan.S @ shift, device)
        return lambda u: torch.addmm(offset, u, matrix)
    gather = torch.tensor(plan.gather.astype(np.int64), device=device)
    diagonal = _tensor(plan.S * scale[plan.gather], device)
    bias = _tensor(plan.t + plan.S * shift[plan.gather], device)
    return lambda u: torch.addcmul(bias, u.index_select(1, gather), diagonal)


def groups(ranges: NDArray[np.integer]) -> list[tuple[range, slice]]:
    """Runs of neighbouring steps to be computed in one product, and the columns each run spans.

    ``ranges`` (K, 2). A run ends where everything later uses fewer columns: with reversal the runs are the levels.
    """
    spans = [(int(ranges[k:, 0].min()), int(ranges[k:, 1].max())) for k in range(len(ranges))]
    edges = [0, *(k for k in range(1, len(spans)) if spans[k] != spans[k - 1]), len(spans)]
    return [(range(a, b), slice(*spans[a])) for a, b in pairwise(edges) if a < b]


def _hidden(plan: Plan, device: str) -> Function:
    """z = S u + V h + t: what every step reads of u at once, then the recursion in h, then every step's writing."""
    assert plan.G is not None  # noqa: S101 - for the type checker: a hidden plan has it
    w = plan.width
    # without a prologue the centring u = s x - m s disappears into the weights
    scale, shift = (plan.s, -plan.m * plan.s) if plan.L is None else (np.ones(plan.state), np.zeros(plan.state))
    enter = None if plan.L is None else _prologue(plan, device)
    leave, U, c = _epilogue(plan, device, scale, shift), plan.U * scale, plan.c + plan.U @ shift
    reads, writes = [], []
    for run, columns in groups(plan.reads):
        own = slice(run.start * w, run.stop * w)
        reads.append((columns, _right(U[own, columns], device), _tensor(c[own], device)))
    for run, rows in groups(plan.writes):
        own = slice(run.start * w, run.stop * w)
        writes.append((rows, own, _right(plan.V[rows, own], device)))
    steps: list[tuple[slice, slice | None, Tensor | None, Tensor, Tensor]] = []
    for k, earlier in enumerate(map(np.flatnonzero, plan.links)):
        own = slice(k * w, (k + 1) * w)
        span = slice(int(earlier[0]) * w, (int(earlier[-1]) + 1) * w) if len(earlier) else None
        link = None if span is None else _right(plan.G[own, span], device)
        steps.append((own, span, link, _right(plan.B[k], device), _tensor(plan.d[k], device)))

    def run_plan(x: Tensor) -> Tensor:
        u = x if enter is None else enter(x)
        z = leave(u)
        if not steps:
            return z
        a = torch.cat([torch.addmm(bias, u[:, columns], weight) for columns, weight, bias in reads], 1)
        h = torch.empty_like(a)
        for own, span, link, inner, bias in steps:
            a_k = a[:, own] if link is None else torch.addmm(a[:, own], h[:, span], link)
            h[:, own] = torch.addmm(bias, a_k.relu(), inner).relu_()
        for rows, own, weight in writes:
            z[:, rows].addmm_(h[:, own], weight)
        return z

    return run_plan


def _state(plan: Plan, device: str) -> Function:
    """u <- (u + V_k h_k + p_k) sigmoid(R_k h_k + q_k), additive u <- u + V_k h_k; then z = S u + t."""
    w = plan.width
    enter, leave = _prologue(plan, device), _epilogue(plan, device, np.ones(plan.state), np.zeros(plan.state))
    steps = []
    for k in range(plan.steps):
        own, read, write = slice(k * w, (k + 1) * w), slice(*plan.reads[k]), slice(*plan.writes[k])
        inner = _right(plan.B[k], device), _tensor(plan.d[k], device)
        last, bias = plan.V[write, own], None
        if plan.p is not None and plan.R is not None and plan.q is not None:
            last = np.concatenate([last, plan.R[write, own]])
            bias = _tensor(np.concatenate([plan.p[k, write], plan.q[k, write]]), device)
        first = _right(plan.U[own, read], device), _tensor(plan.c[own], device)
        steps.append((read, *first, *inner, write, _right(last, device), bias))

    def run_plan(x: Tensor) -> Tensor:
        u = enter(x)
        for read, weight, offset, inner, inner_bias, write, last, bias in steps:
            h = torch.addmm(offset, u[:, read], weight).relu_()
            h = torch.addmm(inner_bias, h, inner).relu_()
            if bias is None:
                u[:, write].addmm_(h, last)
            else:
                shift, gate = torch.addmm(bias, h, last).chunk(2, 1)
                u[:, write].add_(shift).mul_(gate.sigmoid_())
        return leave(u)

    return run_plan
