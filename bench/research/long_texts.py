"""Attention in float32 and in bfloat16, from short texts to 8,192 tokens.

    python -m fastflow.bench.research.long_texts --out bench/results/long-texts

Random weights, on which speed does not depend, in the shapes of MiniLM-L6, BERT-base and ModernBERT-base. *before*: the
same encoder with attention in float32, as it was before attention knew bfloat16; both take turns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.measure.machine import describe
from fastflow.bench.measure.timing import Effort, alternate
from fastflow.bench.research.default_page import table
from fastflow.bench.research.quality import write
from fastflow.kernels._cpu import FLOAT
from fastflow.kernels.encoder import cpu
from fastflow.kernels.encoder.reference import EncoderShape

VOCABULARY, POSITIONS = 1000, 8192
SIZES = {"MiniLM-L6": (6, 384, 12, 1536), "BERT-base": (12, 768, 12, 3072), "ModernBERT-base": (22, 768, 12, 1152)}
WINDOW = 64  # tokens to either side, of ModernBERT's local layers
BATCHES = {
    "MiniLM-L6": ((3, 77), (32, 32), (8, 128), (1, 512), (8, 512)),
    "BERT-base": ((3, 77), (32, 32), (8, 128), (1, 512), (8, 512)),
    "ModernBERT-base": ((1, 512), (1, 8192)),
}
DTYPES = ("float32", "bfloat16", "int8")


def encoder_of(name: str, dtype: str, threads: int, before: bool = False) -> tuple[cpu.CpuEncoder, EncoderShape]:
    """The encoder ``name`` with random weights; ``before``: its attention is in float32."""
    layers, hidden, heads, wide = SIZES[name]
    modern, rng = name.startswith("Modern"), np.random.default_rng(0)
    up = 2 * wide if modern else wide
    sizes = {"qkv": (3 * hidden, hidden), "out": (hidden, hidden), "up": (up, hidden), "down": (hidden, wide)}
    weights: dict[str, NDArray[np.float32]] = {"word": _draw(rng, (VOCABULARY, hidden), 1)}
    norms = ["embed_norm", *(f"layer.{i}.norm{n}" for i in range(layers) for n in (1, 2))]
    if modern:
        norms = [norm for norm in norms if norm != "layer.0.norm1"] + ["final_norm"]
    else:
        weights |= {"position": _draw(rng, (POSITIONS, hidden), 1), "segment": np.zeros(hidden, np.float32)}
    for norm in norms:
        weights[f"{norm}.scale"] = np.ones(hidden, np.float32)
        weights |= {} if modern else {f"{norm}.bias": np.zeros(hidden, np.float32)}
    for i in range(layers):
        for part, size in sizes.items():
            weights[f"layer.{i}.{part}.weight"] = _draw(rng, size, size[1] ** -0.5)
            weights |= {} if modern else {f"layer.{i}.{part}.bias": np.zeros(size[0], np.float32)}
    shape = EncoderShape(layers, hidden, heads, wide, 1e-5, "gelu", POSITIONS, 0, None)
    if modern:
        local = [bool(i % 3) for i in range(layers)]
        shape = EncoderShape(
            layers, hidden, heads, wide, 1e-5, "gelu", POSITIONS, 0, None, pre_norm=True, gated=True,
            rotary=tuple(1e4 if near else 1.6e5 for near in local),
            windows=tuple(WINDOW if near else None for near in local),
        )  # fmt: skip
    attends = (lambda *_: FLOAT) if before else cpu.attends
    with mock.patch.object(cpu, "attends", attends):
        return cpu.CpuEncoder(weights, shape, "mean", (layers,), dtype, threads), shape


def _draw(rng: np.random.Generator, size: tuple[int, ...], deviation: float) -> NDArray[np.float32]:
    return np.float32(deviation) * rng.standard_normal(size, np.float32)


def texts_of(batch: int, tokens: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """ids and offsets of ``batch`` texts of ``tokens`` tokens."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, batch * tokens).astype(np.int32)
    return ids, np.arange(batch + 1, dtype=np.int64) * tokens


def flop(shape: EncoderShape, batch: int, tokens: int) -> tuple[float, float]:
    """Operations of all products, and of attention's among them."""
    up = (2 if shape.gated else 1) * shape.intermediate
    linear = 2.0 * batch * tokens * shape.layers * shape.hidden * (4 * shape.hidden + up + shape.intermediate)
    at = np.arange(tokens)
    attention = 0.0
    for window in shape.windows or (None,) * shape.layers:
        keys = tokens * tokens
        if window is not None:
            keys = int((np.minimum(at + window, tokens - 1) - np.maximum(at - window, 0) + 1).sum())
        attention += 4.0 * batch * keys * shape.hidden
    return linear + attention, attention


def times(name: str, dtype: str, threads: int) -> list[dict[str, Any]]:
    """Median milliseconds of each batch, of attention in float32 and as it is, taken alternately."""
    now, shape = encoder_of(name, dtype, threads)
    kinds = {"now": now}
    if dtype != "float32":
        kinds = {"before": encoder_of(name, dtype, threads, before=True)[0], "now": now}
    rows = []
    for batch, tokens in BATCHES[name]:
        ids, offsets = texts_of(batch, tokens)
        calls = {kind: (lambda e=encoder, i=ids, o=offsets: e(i, o)) for kind, encoder in kinds.items()}
        for call in calls.values():
            call()
        found = alternate(calls, Effort(budget_s=1.5, min_runs=3, max_runs=9, limit_s=20, sample_s=0))
        whole, attention = flop(shape, batch, tokens)
        rows.append({
            "model": name, "dtype": dtype, "batch": batch, "tokens": tokens, "attention_share": attention / whole,
            **{kind: timing.median_ms for kind, timing in found.items()},
            "gflops": whole / found["now"].median_ms / 1e6,
        })  # fmt: skip
    return rows


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
@click.option("--threads", default=2, help="To compute with.")
def main(out: Path, threads: int) -> None:
    """Measure attention from short texts to long ones."""
    rows = []
    for name in SIZES:
        for dtype in DTYPES[: 2 if name.startswith("Modern") else 3]:
            rows += times(name, dtype, threads)
            click.echo(json.dumps(rows[-1]), err=True)
    result = {
        "command": f"python -m fastflow.bench.research.long_texts --out {out}",
        "machine": describe(), "threads": threads, "times": rows,
    }  # fmt: skip
    write(out, result, markdown(result))


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    lines = []
    for row in result["times"]:
        gain = f"{row['before'] / row['now']:.2f}" if "before" in row else ""
        before = f"{row['before']:.1f}" if "before" in row else ""
        share = f"{100 * row['attention_share']:.0f} %"
        size = f"{row['batch']} x {row['tokens']:,}"
        lines.append(
            [row["model"], row["dtype"], size, share, before, f"{row['now']:.1f}", gain, f"{row['gflops']:.0f}"]
        )
    heads = ["model", "dtype", "texts x tokens", "attention's share", "before, ms", "now, ms", "gain", "GFLOP/s"]
    return f"""# Long texts

Made by

    {result["command"]}

Random weights, {result["threads"]} threads, medians taken alternately. *Attention's share* is of the operations;
*before*: attention in float32, everything else the same.

{table(heads, lines)}
"""


if __name__ == "__main__":
    main()
