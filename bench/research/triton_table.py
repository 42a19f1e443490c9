"""Which configurations of the Triton kernels are fastest on this GPU: what the stored tables are chosen by.

    python -m fastflow.bench.research.triton_table --out table.json [--seconds 60]

Every candidate is compiled first, in parallel, and must agree with float64; then each is timed as one of many calls in
a CUDA graph. Under TRITON_INTERPRET=1 it goes through one candidate of each case on a CPU, whose times mean nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
import triton

from fastflow.bench.measure.timing import cpu_watch
from fastflow.bench.peers.flow import unfused
from fastflow.bench.peers.pytorch import device_ms
from fastflow.bench.suites.workloads import Workload, synthetic
from fastflow.kernels.encoder import triton_bodies as encoder_bodies
from fastflow.kernels.encoder.triton_configurations import Attention, attend_constants, attention
from fastflow.kernels.flow import triton as flow_triton
from fastflow.kernels.flow.triton_configurations import Config, choose

INTERPRETED = triton.knobs.runtime.interpret
DEVICE = "cpu" if INTERPRETED else "cuda"
FLOW_ERROR, ATTENTION_ERROR = 2e-6, 1e-2  # relative, the most that a candidate may have
CHECKED = 4096  # rows


class Case(NamedTuple):
    """One size of one kernel; ``config`` is a candidate, and ``stored`` whether the table has it."""

    what: str
    size: tuple[int, ...]
    config: Any
    stored: bool


def flow_cases() -> Iterator[Case]:
    """The flow at 3 x 3 x 32 on 768 channels."""
    exact = ("fma", 1)
    shapes: dict[int, list[tuple[Any, ...]]] = {  # rows -> body, BM, BN, BK, HB, warps, stages, programs an SM
        1: [("pair", 1, bn, bk, hb, w, 3, 1) for bn, bk, hb, w in (
            (32, 256, 16, 4), (16, 128, 16, 4), (16, 256, 16, 4), (32, 128, 16, 2), (32, 128, 16, 8), (64, 128, 16, 4),
            (16, 512, 16, 8), (16, 128, 16, 2), (16, 128, 32, 4))],
        32: [("pair", 16, bn, bk, hb, w, s, 1) for bn, bk, hb, w, s in (
            (32, 64, 32, 4, 3), (64, 128, 32, 4, 3), (32, 128, 32, 4, 3), (32, 128, 32, 2, 3), (128, 64, 32, 4, 3),
            (64, 64, 32, 8, 3), (32, 64, 16, 2, 3), (64, 64, 32, 4, 4))],
        1024: [("pair", bm, bn, bk, 32, w, s, 1) for bm, bn, bk, w, s in (
            (16, 128, 64, 4, 3), (16, 256, 64, 4, 3), (32, 64, 64, 4, 3), (32, 128, 64, 4, 3), (16, 64, 128, 4, 3),
            (32, 128, 32, 4, 4), (64, 128, 32, 4, 3))] + [("loop", 16, bn, bk, 64, w, 3, 1) for bn, bk, w in (
            (32, 32, 4), (64, 64, 4), (64, 64, 8))],
        65_536: [("loop", bm, bn, bk, hb, w, s, p) for bm, bn, bk, hb, w, s, p in (
            (64, 32, 32, 64, 4, 3, 1), (64, 64, 32, 64, 4, 3, 2), (64, 32, 64, 64, 4, 3, 2), (64, 32, 32, 64, 4, 4, 2),
            (64, 32, 32, 64, 4, 2, 3), (64, 32, 32, 32, 4, 3, 2), (128, 32, 32, 64, 8, 3, 1), (128, 64, 32, 64, 8, 3, 1),
            (32, 32, 32, 64, 4, 3, 4), (32, 64, 64, 64, 4, 3, 3), (128, 32, 16, 64, 8, 3, 2), (64, 32, 32, 64, 8, 3, 2))],
    }  # fmt: skip
    shapes[1_000_000] = shapes[65_536] + [("loop", 128, 32, 32, 64, 8, 4, 1), ("loop", 128, 64, 16, 64, 8, 4, 1)]
    for rows, entries in shapes.items():
        stored = choose("hidden", rows)
        yield Case("flow", (rows,), stored, True)
        for body, bm, bn, bk, hb, warps, stages, per_sm in entries:
            scheme = exact[0] if bm == exact[1] else "tf32x3"
            config = Config(stored.rows, body, bm, bn, bk, hb, scheme, warps, stages, per_sm)
            if config != stored:
                yield Case("flow", (rows,), config, False)


def attention_cases() -> Iterator[Case]:
    """bfloat16: texts, tokens and heads of 32 or 64 channels, as all-MiniLM-L6-v2 and BERT-base have them."""
    for size in ((1, 16, 32), (1, 128, 32), (32, 32, 32), (256, 128, 32), (1, 16, 64), (32, 32, 64), (256, 128, 64),
                 (64, 512, 64)):  # fmt: skip
        stored = attention(2, size[2], size[1])
        yield Case("attention", size, stored, True)
        for bm, bn, warps, stages in ((16, 16, 1, 2), (16, 32, 1, 2), (16, 32, 4, 2), (32, 32, 2, 2), (32, 64, 4, 2),
                                      (64, 32, 4, 2), (64, 64, 4, 2), (64, 128, 4, 2), (128, 32, 4, 2), (128, 64, 4, 2),
                                      (128, 64, 4, 3), (128, 64, 8, 2), (128, 128, 8, 2)):  # fmt: skip
            config = Attention(stored.head, stored.tokens, bm, bn, warps, stages)
            if config != stored and max(bm, bn) <= 2 * size[1]:
                yield Case("attention", size, config, False)


@cache
def workload() -> Workload:
    """The paper's flow, and rows to check with."""
    return synthetic(1, 2, 8, "additive", 64, 64) if INTERPRETED else synthetic(3, 3, 32, "additive", CHECKED)


@cache
def exact() -> Any:
    """Its float64 results."""
    x = torch.from_numpy(workload().x).to(DEVICE)
    return unfused(workload().stages, DEVICE, torch.float64)(x).cpu().numpy()


@cache
def inputs(rows: int) -> Any:
    """(rows, D) on the device."""
    x = torch.from_numpy(workload().x).to(DEVICE)
    return x.repeat(-(-rows // len(x)), 1)[:rows].contiguous()


def prepare(case: Case) -> tuple[Callable[[Any], Any], Any, float]:
    """The call, its input, and the error of its result."""
    return (_prepare_flow if case.what == "flow" else _prepare_attention)(case)


def _prepare_flow(case: Case) -> tuple[Callable[[Any], Any], Any, float]:
    flow, x = flow_triton.TritonFlow(workload().plans, DEVICE), inputs(min(case.size[0], 8) if INTERPRETED else case.size[0])

    def call(x: Any) -> Any:
        flow_triton.choose = lambda *_: case.config
        return flow(x)

    z, wanted = call(x)[:CHECKED].cpu().numpy(), exact()[: len(x)]
    return call, x, float(np.linalg.norm(z - wanted) / np.linalg.norm(wanted))


def _prepare_attention(case: Case) -> tuple[Callable[[Any], Any], Any, float]:
    texts, tokens, head = (1, 16, 16) if INTERPRETED else case.size
    heads, config = 1 if INTERPRETED else 12, case.config
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    dot = triton.language.float32 if INTERPRETED else triton.language.bfloat16
    qkv = torch.randn(texts * tokens, 3 * heads * head, device=DEVICE).to(dtype)
    offsets = torch.arange(0, texts * tokens + 1, tokens, dtype=torch.int32, device=DEVICE)
    constants, grid = attend_constants(config, head, dot), (-(-tokens // config.BM), heads, texts)

    def call(qkv: Any) -> Any:
        y = torch.empty(len(qkv), heads * head, dtype=dtype, device=DEVICE)
        encoder_bodies.attend[grid](
            qkv_ptr=qkv, offset_ptr=offsets, y_ptr=y, heads=heads, head=head, scale=head**-0.5, **constants
        )
        return y

    q, k, v = qkv.float().view(texts, tokens, 3, heads, head).permute(2, 0, 3, 1, 4)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(qkv), -1)
    return call, qkv, float((call(qkv).float() - wanted).norm() / wanted.norm())


def compile_one(case: Case) -> float | str:
    """The error of a candidate, or why it does not run. Its kernels are in Triton's cache afterwards."""
    try:
        with torch.inference_mode():
            small = _small(case)
            return prepare(small)[2]
    except Exception as error:  # a compiler's, for a block that does not fit
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _small(case: Case) -> Case:
    """The case on fewer rows: the kernels are the same."""
    return case._replace(size=(min(case.size[0], CHECKED),)) if case.what == "flow" else case


def measure(cases: list[Case], found: list[float | str], end: float) -> Iterator[dict[str, Any]]:
    """The entry of each candidate, until ``end`` (monotonic seconds)."""
    timing = partial(cpu_watch, calls=1) if INTERPRETED else None
    for case, error in zip(cases, found, strict=True):
        entry = {"what": case.what, "size": case.size, "stored": case.stored, "config": asdict(case.config)}
        limit = FLOW_ERROR if case.what == "flow" else ATTENTION_ERROR
        if isinstance(error, str) or not error <= limit or time.monotonic() > end:
            yield entry | {"left_out": error if isinstance(error, str) else f"error {error:.1e}, or out of time"}
            continue
        with torch.inference_mode():
            call, x, error = prepare(case)
            calls = 20 if x.numel() < 1 << 24 else 3
            ms = timing(partial(call, x)) * 1e3 if timing else device_ms(call, x, calls)
        yield entry | {"ms": ms, "error": error}


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The JSON to write.")
@click.option("--seconds", default=60.0, help="Time for all, compiling included.")
@click.option("--processes", default=max(1, (os.cpu_count() or 1) - 2), help="That compile at once.")
def main(out: Path, seconds: float, processes: int) -> None:
    """Time the configurations of the Triton kernels on this GPU."""
    end, cases = time.monotonic() + seconds, [*flow_cases(), *attention_cases()]
    if INTERPRETED:
        cases = [next(case for case in cases if case.what == what) for what in ("flow", "attention")]
        found = [compile_one(case) for case in cases]
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            found = list(pool.map(compile_one, cases))
    entries = []
    for entry in measure(cases, found, end):
        entries.append(entry)
        out.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    for group in sorted({(e["what"], e["size"]) for e in entries}):
        timed = sorted((e for e in entries if (e["what"], e["size"]) == group and "ms" in e), key=lambda e: float(e["ms"]))
        print(*group, *(f"{e['ms'] * 1e3:.1f} us{' (stored)' * e['stored']}" for e in timed[:4]), sep="  ")
        for e in timed[:3]:
            print("    ", {k: v for k, v in e["config"].items() if k not in ("rows", "tokens", "head", "SCHEME")})
    print(f"{len([e for e in entries if 'ms' in e])} of {len(entries)} candidates timed")


if __name__ == "__main__":
    main()
