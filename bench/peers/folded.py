"""The folded plan in plain PyTorch: the strongest form without own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastflow.bench.peers.flow import Function, call_in_turn
from fastflow.kernels.flow import Plan
from fastflow.plan.linear import LARGEST, divides

Array = NDArray[Any]


def build_folded(plans: Sequence[Plan], device: str) -> Function | None:
    """Build float64 ``plans`` in state form, u <- u + V_k h_k; None if a plan with steps has no such form.

    Zero blocks are skipped, and results are written in place.
    """
    turned = [_to_state_form(plan) or plan for plan in plans]
    if any(plan.form == "hidden" and plan.steps for plan in turned):
        return None
    return call_in_turn([_build_state(plan, device) for plan in turned])


def _to_state_form(plan: Plan) -> Plan | None:
    """Turn a hidden ``plan`` into state form; None unless S is a permuted diagonal and V / S is within float32."""
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


def _to_tensor(array: Array, device: str) -> Tensor:
    return torch.tensor(np.ascontiguousarray(array), device=device).float()


def _to_right_factor(matrix: Array, device: str) -> Tensor:
    # (n, m) -> (m, n)
    return _to_tensor(matrix.T, device)


def _build_prologue(plan: Plan, device: str) -> Function:
    """x -> u = L ((x - m) s), a new tensor (B, M), in one operation."""
    if plan.L is not None:
        matrix, bias = _to_right_factor(plan.L * plan.s, device), _to_tensor(-plan.L @ (plan.m * plan.s), device)
        return lambda x: torch.addmm(bias, x, matrix)
    scale, shift = _to_tensor(plan.s, device), _to_tensor(-plan.m * plan.s, device)
    return lambda x: torch.addcmul(shift, x, scale)


def _build_epilogue(plan: Plan, device: str) -> Function:
    """u -> S u + t, a new tensor (B, N)."""
    offset = _to_tensor(plan.t, device)
    if plan.gather is None:
        matrix = _to_right_factor(plan.S, device)
        return lambda u: torch.addmm(offset, u, matrix)
    gather, diagonal = torch.tensor(plan.gather.astype(np.int64), device=device), _to_tensor(plan.S, device)
    return lambda u: torch.addcmul(offset, u.index_select(1, gather), diagonal)


def _build_state(plan: Plan, device: str) -> Function:
    """u <- (u + V_k h_k + p_k) sigmoid(R_k h_k + q_k), additive u <- u + V_k h_k; then z = S u + t."""
    w = plan.width
    enter, leave = _build_prologue(plan, device), _build_epilogue(plan, device)
    steps = []
    for k in range(plan.steps):
        own, read, write = slice(k * w, (k + 1) * w), slice(*plan.reads[k]), slice(*plan.writes[k])
        inner = _to_right_factor(plan.B[k], device), _to_tensor(plan.d[k], device)
        last, bias = plan.V[write, own], None
        if plan.p is not None and plan.R is not None and plan.q is not None:
            last = np.concatenate([last, plan.R[write, own]])
            bias = _to_tensor(np.concatenate([plan.p[k, write], plan.q[k, write]]), device)
        first = _to_right_factor(plan.U[own, read], device), _to_tensor(plan.c[own], device)
        steps.append((read, *first, *inner, write, _to_right_factor(last, device), bias))

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
