"""Print a SHA-256 of the CPU kernels' bits for each instruction set, format, shape and batch.

A change of the C code that must not change bits is checked by two runs on one machine:

    python tests/native/hashes.py > before.txt;  python tests/native/hashes.py > after.txt;  diff before.txt after.txt

The hash of the seeded inputs is first; the last line is the hash of all others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fastflow.kernels import _cpu, processor
from fastflow.kernels.encoder import PoolingSpec
from fastflow.kernels.encoder import cpu as cpu_encoder
from fastflow.kernels.flow import cpu
from fastflow.kernels.table.cpu import CpuTable
from fastflow.kernels.table.reference import RUN, STORED, WHOLE, Table
from fastflow.plan import fold

from support import stages as make
from support.packed import pack, random_encoder, token_weights

WIDTHS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65)  # on both sides of whole vectors
BATCHES = (1, 7, 64)
FORMATS = ("FLOAT", "BF16", "BF16_WIDE", "INT8", "INT8_SIGNED", "INT8_TILES")
POOLINGS = {"first-last": "mean", "cls": "cls", "pooler": "pooler", "weighted": "mean"}
# name -> arguments of random_encoder, and whether all batches run (emulated AMX is slow on wide ones)
ENCODERS: dict[str, tuple[dict[str, Any], bool]] = {
    "bert": ({"layers": 3, "hidden": 96, "heads": 4, "intermediate": 200}, True),
    "minilm": ({"layers": 2, "hidden": 48, "heads": 12, "intermediate": 192}, True),
    "roberta": ({"layers": 2, "hidden": 72, "heads": 3, "intermediate": 130, "pad_id": 1}, True),
    "electra": ({"layers": 2, "hidden": 64, "heads": 4, "intermediate": 97, "width": 24}, True),
    "gelu_tanh, half": (
        {"layers": 2, "hidden": 64, "heads": 2, "intermediate": 65, "activation": "gelu_tanh", "half": True},
        True,
    ),
    "relu, odd": ({"layers": 2, "hidden": 35, "heads": 5, "intermediate": 33, "activation": "relu"}, True),
    "bert-base": ({"layers": 1, "hidden": 768, "heads": 12, "intermediate": 3072}, False),
}


def digest(*arrays: np.ndarray) -> str:
    out = sha256()
    for array in arrays:
        out.update(repr((array.shape, array.dtype.str)).encode())
        out.update(np.ascontiguousarray(array).tobytes())
    return out.hexdigest()


def calibrations() -> Iterator[tuple[str, int, list[Any]]]:
    """(name, input width, stages)."""
    rng = np.random.default_rng(20)
    for n in WIDTHS:
        yield f"standardize, whiten {n}", n, [make.standardize(rng, n), make.whiten(rng, n, max(1, n - 2))]
        for coupling in ("additive", "affine"):
            dim = 2 * n + 8 - 2 * n % 4
            yield f"{coupling} width {n}", dim, [make.flow(rng, dim, 2, 2, n, coupling)]
        if n > 3:
            yield f"nullspace {n}", n, [make.nullspace(rng, n)]
    for permutation in ("random", "lu"):
        for coupling in ("additive", "affine"):
            yield f"{coupling} {permutation}", 80, [make.flow(rng, 80, 3, 2, 40, coupling, permutation)]
    chain = [make.whiten(rng, 104, 96), make.flow(rng, 96, 3, 2, 20), make.nullspace(rng, 96)]
    yield "chain", 104, [*chain, make.flow(rng, 96, 2, 2, 70, "affine", "random")]
    for coupling in ("additive", "affine"):
        yield f"{coupling} of the paper", 768, [make.flow(rng, 768, coupling=coupling)]


def flows(isa: str) -> Iterator[tuple[str, str]]:
    rng = np.random.default_rng(21)
    for name, dim, stages in calibrations():
        x = rng.normal(size=(max(BATCHES), dim)).astype(np.float32)
        x[:, dim // 3] = 20 + 3 * x[:, dim // 3]
        flow = cpu.CpuFlow(fold(stages, dim), threads=1, isa=isa)
        for rows in BATCHES:
            keep = max(1, flow.outputs - 3)
            outputs = flow(x[:rows]), flow(x[:rows], normalize=True), flow(x[:rows], normalize=True, truncate=keep)
            assert all(np.isfinite(z).all() for z in outputs), (isa, name)
            yield f"{isa}, flow, {name}, {rows} rows", digest(*outputs)


def encoders(isa: str) -> Iterator[tuple[str, str]]:
    usable = cpu_encoder.formats(processor.isas()[isa][0])
    for form, (name, (arguments, whole)) in ((f, e) for f in FORMATS for e in ENCODERS.items()):
        number = getattr(_cpu, form)
        if number not in usable:
            continue
        cpu_encoder.DTYPES[form] = (number,)  # only this format of its dtype
        weights, shape = random_encoder(30, **arguments)
        for pooling, mode in POOLINGS.items():
            layers = (1, shape.layers) if mode == "mean" and shape.layers > 1 else (shape.layers,)
            table = token_weights(31) if pooling == "weighted" else None
            encoder = cpu_encoder.CpuEncoder(
                weights, shape, PoolingSpec(mode, layers, token_weights=table), form, threads=1, isa=isa
            )
            outputs = []
            for texts in BATCHES if whole else BATCHES[:2]:
                lengths = [17] if texts == 1 else [WIDTHS[i * i % len(WIDTHS)] for i in range(1, texts + 1)]
                ids, offsets = pack(lengths, texts)
                outputs += [encoder(ids, offsets), *encoder.states(ids, offsets).values()]
            assert all(np.isfinite(z).all() for z in outputs), (isa, form, name)
            yield f"{isa}, encoder, {form}, {name}, {pooling}", digest(*outputs)
        del cpu_encoder.DTYPES[form]


def tables(isa: str) -> Iterator[tuple[str, str]]:
    """The same hashes on every instruction set."""
    rng = np.random.default_rng(40)
    for dtype in STORED:
        for width in WIDTHS:
            rows = (40 * rng.normal(size=(300, width))).astype(dtype)
            scales, weights = rng.uniform(0.1, 2, (2, 300)).astype(np.float32)
            ids = rng.integers(0, 300, sum(WIDTHS)).astype(np.int32)
            for run in (RUN, WHOLE):
                table = CpuTable(Table(rows, scales, run=run), weights, threads=1, isa=isa)
                yield f"{isa}, table, {dtype}, {width} wide, run {run}", digest(table(ids, np.cumsum([0, *WIDTHS])))


def inputs() -> Iterator[tuple[str, str]]:
    """If these differ, the kernels cannot be compared."""
    plans = [plan for _, dim, stages in calibrations() for plan in fold(stages, dim)]
    yield "inputs, plans", digest(*(a for plan in plans for _, a in sorted(plan.astype(np.float32).arrays().items())))
    weights = [random_encoder(30, **arguments)[0] for arguments, _ in ENCODERS.values()]
    yield "inputs, encoders", digest(*(array for table in weights for _, array in sorted(table.items())))


def hashes() -> Iterator[tuple[str, str]]:
    yield from inputs()
    for isa, (_, usable, _, _) in processor.isas().items():
        if usable:
            if isa not in processor.TILES:  # they use AVX-512's
                yield from flows(isa)
                yield from tables(isa)
            yield from encoders(isa)


if __name__ == "__main__":
    whole = sha256()
    for combination, found in hashes():
        whole.update(f"{found} {combination}\n".encode())
        print(found, combination, flush=True)
    print(whole.hexdigest(), "all")
