"""Time configurations of the Triton kernels on this GPU, to choose the stored tables.

    python -m fastflow.bench.research.triton_table --out table.json [--seconds 60]

Candidates are compiled in parallel, checked against float64, and timed in a CUDA graph. TRITON_INTERPRET=1 runs one
candidate of each case on a CPU, with meaningless times.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
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
from fastflow.bench.peers.flow import build_unfused
from fastflow.bench.peers.gpu import device_ms
from fastflow.bench.suites.flow import Workload, make_synthetic
from fastflow.kernels.encoder import triton as encoder_triton
from fastflow.kernels.encoder import triton_bodies as encoder_bodies
from fastflow.kernels.encoder.reference import activate
from fastflow.kernels.encoder.triton import Attention, Product, attend_constants, attention, product_constants
from fastflow.kernels.flow import triton as flow_triton
from fastflow.kernels.flow.triton import Config
from fastflow.train.options import DEFAULTS
from fastflow.train.options import LARGE as LARGE_FLOW

INTERPRETED = triton.knobs.runtime.interpret
DEVICE = "cpu" if INTERPRETED else "cuda"
FLOW_ERROR, ATTENTION_ERROR = 2e-6, 1e-2  # the largest relative error of a candidate
CHECKED = 4096  # rows
COMPILING = 0.6  # share of the time, for compiling
CHOOSE = flow_triton.choose


class Case(NamedTuple):
    """A kernel at a ``size``, and a candidate ``config``, which is ``stored`` if a table has it.

    flow, dense: the plain flow, and the packaged kind merged; in place: the same with steps that update the state;
    product: of GELU; apart: cuBLASLt's product and ``activate``; cuBLASLt: its product with GELU by tanh.
    """

    what: str
    size: tuple[int, ...]
    config: Any
    stored: bool


# candidates: BM, BN, BK, HB, warps, stages, AHEAD
Numbers = tuple[Any, ...]
ONE = ((32, 16, 8, 0), (32, 16, 8, 1), (16, 16, 8, 2), (32, 16, 4, 2), (32, 8, 8, 2), (64, 16, 8, 1))
FEW = ((32, 8, 0), (64, 4, 0), (32, 4, 1), (32, 4, None))
SOME = ((16, 64, 64, 32), (16, 64, 64, 64), (32, 64, 32, 64), (32, 128, 64, 32), (64, 64, 32, 64))
MANY = (
    (64, 64, 32, 64, 4, 2), (128, 64, 32, 64, 4, 2), (128, 64, 32, 64, 8, 3), (64, 128, 32, 64, 4, 3),
    (64, 32, 32, 64, 4, 3), (64, 64, 32, 32, 4, 3), (64, 64, 64, 64, 4, 2), (128, 128, 32, 64, 8, 2),
)  # fmt: skip
HIDDEN: dict[int, list[Numbers]] = {
    1: [(1, bn, 512, hb, warps, 3, ahead) for bn, hb, warps, ahead in ONE],
    32: [(16, bn, 64, 32, warps, 3, ahead) for bn, warps, ahead in FEW],
    1024: [(*blocks, 4, 3, None) for blocks in SOME],
    8192: [(*blocks, 4, 3, None) for blocks in SOME],
    65_536: [(*numbers, None) for numbers in MANY],
}
DENSE: dict[int, list[Numbers]] = {
    1: [(1, bn, bk, 16, warps, 3, None) for bn, bk, warps in ((16, 128, 4), (16, 512, 8), (8, 512, 4), (32, 256, 8))],
    1024: [(*blocks, 4, 3, None) for blocks in SOME],
    65_536: [(*numbers, None) for numbers in MANY],
}


IN_PLACE: dict[int, list[Numbers]] = {
    1: [(1, bn, bk, 0, warps, 3, None) for bn, bk, warps in ((64, 128, 8), (64, 128, 16), (128, 128, 8))],
    1024: [(16, bn, bk, 0, warps, 3, None) for bn, bk, warps in ((64, 32, 4), (128, 64, 4), (64, 128, 4), (64, 64, 8))],
    65_536: [
        (bm, 64, bk, 0, warps, 3, None) for bm, bk, warps in ((64, 64, 4), (64, 64, 8), (128, 32, 8), (32, 64, 4))
    ],
}
UP = ((128, 256, 64, 8, 8, 3), (128, 128, 64, 8, 4, 3), (128, 128, 32, 8, 8, 4), (64, 256, 64, 8, 8, 3))
KINDS = {"flow": ("hidden", HIDDEN), "dense": ("dense", DENSE), "in place": ("state", IN_PLACE)}


def _list_flow_cases() -> Iterator[Case]:
    for what, (kind, sizes) in KINDS.items():
        for rows, entries in sizes.items():
            stored = flow_triton.choose(kind, rows)
            yield Case(what, (rows,), stored, True)
            for bm, bn, bk, hb, warps, stages, ahead in entries:
                one = ahead is not None or kind == "state"
                for scheme in ("fma",) if bm == 1 else ("tf32x3",) if one else ("split", "tf32x3"):
                    config = Config(stored.rows, bm, bn, bk, hb, scheme, warps, stages, stored.per_sm, ahead)
                    if config != stored:
                        yield Case(what, (rows,), config, False)


def _list_attention_cases() -> Iterator[Case]:
    for size in ((1, 16, 32), (32, 32, 32), (256, 128, 32), (1, 128, 64), (32, 32, 64), (256, 128, 64), (64, 512, 64)):
        stored = attention(2, size[2], size[1])
        yield Case("attention", size, stored, True)
        short = ((16, 16, 1, 2), (16, 16, 4, 2), (16, 32, 1, 2), (32, 32, 2, 2))
        long = ((32, 64, 4, 2), (64, 64, 4, 2), (64, 128, 4, 2), (128, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2))
        for bm, bn, warps, stages in short if size[1] <= 32 else (*short[-1:], *long):
            config = Attention(stored.head, stored.tokens, bm, bn, warps, stages)
            if config != stored and max(bm, bn) <= 2 * size[1]:
                yield Case("attention", size, config, False)


def _list_product_cases() -> Iterator[Case]:
    for size in ((32_768, 768, 3072), (4096, 768, 3072), (8192, 384, 1536)):
        yield Case("product", size, encoder_triton.UP, True)
        for config in ("apart", "cuBLASLt", *(Product(1, *numbers) for numbers in UP)):
            yield Case("product", size, config, False)


@cache
def _make_workload(what: str) -> Workload:
    if INTERPRETED:
        return make_synthetic(1, 2, 8, "additive", 64, 64)
    if what == "flow":
        return make_synthetic(3, 3, 32, "additive", CHECKED)
    return make_synthetic(DEFAULTS.levels, **LARGE_FLOW, coupling="additive", rows=CHECKED, recolour=True)


@cache
def _open_flow(what: str) -> tuple[flow_triton.TritonFlow, Any]:
    made = _make_workload(what)
    flow_triton.WORTH = 0  # so that either form can be asked for
    x = torch.from_numpy(made.x).to(DEVICE)
    exact = build_unfused(made.stages, DEVICE, torch.float64)(x)
    return flow_triton.TritonFlow(made.plans, DEVICE), exact.cpu().numpy()


@cache
def _make_inputs(what: str, rows: int) -> Any:
    x = torch.from_numpy(_make_workload(what).x).to(DEVICE)
    return x.repeat(-(-rows // len(x)), 1)[:rows].contiguous()


def prepare(case: Case) -> tuple[Callable[[Any], Any], Any, float]:
    """Return the call, its input and its error; raise if a second call gives other bits."""
    prepare_case = {"attention": _prepare_attention, "product": _prepare_product}.get(case.what, _prepare_flow)
    call, x, wanted = prepare_case(case)
    z = call(x)
    if not torch.equal(z, call(x)):
        raise ValueError("two runs differ")
    found = z[:CHECKED].double().cpu().numpy()
    return call, x, float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def _prepare_flow(case: Case) -> tuple[Callable[[Any], Any], Any, Any]:
    (flow, exact), rows = _open_flow(case.what), min(case.size[0], 8) if INTERPRETED else case.size[0]

    def call(x: Any) -> Any:
        asked = KINDS[case.what][0]
        flow_triton.choose = lambda kind, rows: case.config if kind == asked else CHOOSE(kind, rows)
        flow_triton.FEW = 0 if case.what == "in place" else 1 << 30
        return flow(x)

    return call, _make_inputs(case.what, rows), exact[:rows]


def _prepare_product(case: Case) -> tuple[Callable[[Any], Any], Any, Any]:
    (tokens, inputs, width), config = (9, 64, 24) if INTERPRETED else case.size, case.config
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    dot = triton.language.float32 if INTERPRETED else triton.language.bfloat16
    x, weight = (torch.randn(rows, inputs, device=DEVICE).to(dtype) for rows in (tokens, width))
    bias = torch.zeros(width, device=DEVICE)

    def call(x: Any) -> Any:
        if config == "cuBLASLt":
            return torch._addmm_activation(bias.to(dtype), x, weight.T, use_gelu=True)
        if config == "apart":
            y = torch.nn.functional.linear(x, weight)
            options = encoder_triton.activate_constants("gelu", width)
            encoder_bodies.activate[tokens, -(-width // options["BI"])](x_ptr=y, add_ptr=bias, D=width, **options)
            return y
        y = torch.empty(tokens, width, dtype=dtype, device=DEVICE)
        constants = product_constants(config, "gelu", width, dot) | {"N": tokens, "D": inputs, "width": width}
        grid = (-(-tokens // config.BM) * -(-width // config.BN),)
        encoder_bodies.multiply_activate[grid](x_ptr=x, weight_ptr=weight, add_ptr=bias, y_ptr=y, **constants)
        return y

    return call, x, activate((x[:CHECKED].double() @ weight.double().T).cpu().numpy(), "gelu")


def _prepare_attention(case: Case) -> tuple[Callable[[Any], Any], Any, Any]:
    texts, tokens, head = (1, 16, 16) if INTERPRETED else case.size
    heads, config = 1 if INTERPRETED else 12, case.config
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    dot = triton.language.float32 if INTERPRETED else triton.language.bfloat16
    qkv = torch.randn(texts * tokens, 3 * heads * head, device=DEVICE).to(dtype)
    offsets = torch.arange(0, texts * tokens + 1, tokens, dtype=torch.int32, device=DEVICE)
    constants, blocks = attend_constants(config, head, dot), -(-tokens // config.BM)

    def call(qkv: Any) -> Any:
        y = torch.empty(len(qkv), heads * head, dtype=dtype, device=DEVICE)
        values = {"heads": heads, "head": head, "blocks": blocks, "scale": head**-0.5}
        encoder_bodies.attend[(texts * heads * blocks,)](
            qkv_ptr=qkv, offset_ptr=offsets, y_ptr=y, **values, **constants
        )
        return y

    q, k, v = qkv.float().view(texts, tokens, 3, heads, head).permute(2, 0, 3, 1, 4)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(qkv), -1)
    return call, qkv, wanted[:CHECKED].double().cpu().numpy()


def _compile_one(case: Case) -> float | str:
    try:
        if case.what in KINDS:
            case = case._replace(size=(min(case.size[0], CHECKED),))  # more rows run the same kernels
        with torch.inference_mode():
            return prepare(case)[2]
    except Exception as error:  # a compiler refuses a block that does not fit
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _compile_all(cases: list[Case], processes: int, seconds: float) -> list[float | str]:
    pool = ProcessPoolExecutor(processes, get_context("spawn"))
    waiting = [pool.submit(_compile_one, case) for case in cases]
    done = wait(waiting, timeout=seconds).done
    found = [one.result() if one in done else "no time to compile it" for one in waiting]
    for process in list(pool._processes.values()):  # compilations would disturb the measurement
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)
    return found


def measure(cases: list[Case], found: list[float | str], end: float) -> Iterator[dict[str, Any]]:
    """Yield the entry of each candidate until ``end`` (monotonic seconds)."""
    timing = partial(cpu_watch, calls=1) if INTERPRETED else None
    for case, error in zip(cases, found, strict=True):
        config = case.config if isinstance(case.config, str) else asdict(case.config)
        entry = {"what": case.what, "size": case.size, "stored": case.stored, "config": config}
        limit = FLOW_ERROR if case.what in KINDS else ATTENTION_ERROR
        if isinstance(error, str) or not error <= limit or time.monotonic() > end:
            yield entry | {"left_out": error if isinstance(error, str) else f"error {error:.1e}, or out of time"}
            continue
        with torch.inference_mode():
            call, x, error = prepare(case)
            many = (20, 5) if x.numel() < 1 << 22 else (1, 1)
            ms = timing(partial(call, x)) * 1e3 if timing else device_ms(call, x, *many)
        yield entry | {"ms": ms, "error": error}


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The JSON to write.")
@click.option("--seconds", default=60.0, help="Time for all, compiling included.")
@click.option("--processes", default=max(1, (os.cpu_count() or 1) - 2), help="That compile at once.")
def main(out: Path, seconds: float, processes: int) -> None:
    """Time the configurations of the Triton kernels on this GPU."""
    start, cases = time.monotonic(), [*_list_flow_cases(), *_list_product_cases(), *_list_attention_cases()]
    if INTERPRETED:
        cases = [next(case for case in cases if case.what == what) for what in (*KINDS, "product", "attention")]
        found = [_compile_one(case) for case in cases]
    else:
        found = _compile_all(cases, processes, seconds * COMPILING)
    entries = []
    for entry in measure(cases, found, start + seconds):
        entries.append(entry)
        out.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    for group in sorted({(e["what"], e["size"]) for e in entries}):
        timed = sorted(
            (e for e in entries if (e["what"], e["size"]) == group and "ms" in e), key=lambda e: float(e["ms"])
        )
        print(*group, *(f"{e['ms'] * 1e3:.1f} us{' (stored)' * e['stored']}" for e in timed[:4]), sep="  ")
        for e in timed[:3]:
            numbers = e["config"] if isinstance(e["config"], dict) else {}
            print(
                "    ",
                {k: v for k, v in numbers.items() if k not in ("rows", "tokens", "head", "SCHEME")} or e["config"],
            )
    print(f"{len([e for e in entries if 'ms' in e])} of {len(entries)} candidates timed")


if __name__ == "__main__":
    main()
