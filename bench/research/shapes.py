"""The encoder against every engine, at the shapes that people run: batches from one short text to 8 x 512 tokens.

    python -m fastflow.bench.research.shapes --shape minilm-l6 --against openvino,onnxruntime --batches 1x8,32x32 \\
        --out bench/results/zen4/shapes

Each call measures one comparison in this process, as the encoder suite does, and adds it to OUT.json; OUT.md is made
of all. A shape that was measured several times counts with the median of its ratios, not of its times.

A call in an environment with HELD holds every engine that obeys it to AVX2, ours too; its rows stand apart.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from fastflow.bench.measure.machine import Neighbours, describe, peak_gflops
from fastflow.bench.measure.timing import Effort
from fastflow.bench.report.ratios_encoder import CLASSES
from fastflow.bench.research.study import read, table, write
from fastflow.bench.suites.encoder import run_encoder
from fastflow.bench.suites.sizes import FULL, EncoderSizes
from fastflow.bench.suites.workbench import SHAPES, workbench

ALL = "1x8,1x16,1x32,3x77,17x45,8x32,32x32,8x128,32x128,1x512,8x512"
BAR = 0.97  # ours over the fastest peer's: what counts as ahead, not as level
SMALL = Effort(budget_s=6.0, min_runs=7, max_runs=40)
LARGE = Effort(budget_s=0, min_runs=3, sample_s=0, pause_s=5e-3)
BUSY = 0.6  # processors that others used, above which a run does not count
HELD = {
    "FASTFLOW_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
}
LIMIT = 8192  # tokens, times layers and width over those of MiniLM-L6, above which three samples have to do


def measured(shape: str, against: list[str], batches: list[tuple[int, int]], threads: int) -> dict[str, Any]:
    """One comparison: every row at the ``batches``, with the machine's ceilings and its neighbours."""
    neighbours, rows, ceilings, skipped = Neighbours(), [], [], []
    with workbench(None, {}, shape) as bench:
        for effort, some in ((SMALL, [b for b in batches if not _large(shape, b)]), (LARGE, batches)):
            left = [b for b in some if effort is SMALL or _large(shape, b)]
            if left:
                sizes = EncoderSizes(shapes=tuple(left), chosen=frozenset(), effort=effort)
                found = run_encoder(bench, against, replace(FULL, encoder=sizes), threads, _say)
                rows += found.rows
                ceilings += found.ceilings
                skipped += found.skipped
    return {
        "shape": shape, "against": against, "rows": rows, "ceilings": ceilings, "skipped": skipped,
        "processors_used_by_others": neighbours.processors(),
        "held": all(os.environ.get(name) == value for name, value in HELD.items()),
    }  # fmt: skip


def ratios(runs: list[dict[str, Any]], shape: str, dtype: str, held: bool = False) -> list[dict[str, Any]]:
    """For each batch of ``shape``, held to AVX2 or not: ours over the fastest peer of the class (the median of the
    runs), and our fraction of the machine's arithmetic or memory ceiling, the best that any run found.
    """
    out = []
    runs = [run for run in runs if run.get("held", False) == held]
    quiet = [run for run in runs if run["processors_used_by_others"] <= BUSY]
    peak = max(peak_gflops(c, dtype) for run in quiet for c in run["ceilings"])
    read = max(c["read_gbs"] for run in quiet for c in run["ceilings"])
    for at in sorted({(r["batch"], r["tokens"]) for run in runs for r in run["rows"] if run["shape"] == shape}):
        by_peer: dict[str, list[float]] = {}
        own = []
        for run in (run for run in quiet if run["shape"] == shape):
            rows = {(r["name"], r["dtype"]): r for r in run["rows"] if (r["batch"], r["tokens"]) == at}
            if (ours := rows.get(("fastflow", dtype))) is None:
                continue
            own.append(max(ours["gflops"] / peak, ours["gbs"] / read))
            for peer in CLASSES[dtype]:
                if (row := rows.get(peer)) is not None:
                    by_peer.setdefault(" ".join(peer), []).append(ours["median_ms"] / row["median_ms"])
        if by_peer:
            best = max(by_peer, key=lambda peer: median(by_peer[peer]))
            ratio, share = median(by_peer[best]), median(own)
            out.append({
                "batch": at[0], "tokens": at[1], "peer": best, "times": len(by_peer[best]),
                "ratio": ratio, "share": share, "peer_share": share * ratio,
                "all": {peer: round(median(found), 3) for peer, found in by_peer.items()},
            })  # fmt: skip
    return out


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    parts = []
    kinds = {(run["shape"], run.get("held", False)) for run in result["runs"]}
    for shape, held in ((s, held) for held in (False, True) for s in SHAPES if (s, held) in kinds):
        for dtype in ["float32"] if held else CLASSES:
            heads = ["batch x tokens", "fastest peer", "ours / theirs", "of the ceiling", "theirs", "runs", "others"]
            lines = []
            for row in ratios(result["runs"], shape, dtype, held):
                ratio = f"{row['ratio']:.2f}" if row["ratio"] <= BAR else f"**{row['ratio']:.2f}**"
                others = ", ".join(f"{name} {r:.2f}" for name, r in row["all"].items() if name != row["peer"])
                shares = f"{row['share']:.0%}", f"{row['peer_share']:.0%}"
                lines.append(
                    [f"{row['batch']} x {row['tokens']}", row["peer"], ratio, *shares, str(row["times"]), others]
                )
            title = f"{shape}, {dtype}" + ", every engine held to AVX2" * held
            if lines:
                parts.append(f"## {title}\n\n{table(heads, lines)}")
    left_out = sum(run["processors_used_by_others"] > BUSY for run in result["runs"])
    return f"""# The encoder at the shapes that people run

Made by calls of

    {result["command"]}

Random token ids, equal for everybody, texts of equal length, two threads; vectors are checked against PyTorch in
float32 first. *ours / theirs*: our median time over that of the fastest peer of the precision class, the median over
the runs; above {BAR} it is bold. *of the ceiling*: the least time that the machine's ceilings allow, the best that were
measured, of arithmetic (AMX's tiles where there are any, else 1, 2 and 4 times float32's rate) and of memory, over
the measured time; above 100 % weights stay in a cache, which is faster than memory. *others*: the same ratio for the
other peers. Of {len(result["runs"])} runs {left_out} do not count: other processes used more than {BUSY} processors.

{chr(10).join(part + chr(10) for part in parts).rstrip()}
"""


def _large(shape: str, batch: tuple[int, int]) -> bool:
    size = SHAPES[shape] or {"hidden_size": 768, "num_hidden_layers": 12}
    times = (size["hidden_size"] / 384) ** 2 * size["num_hidden_layers"] / 6
    return batch[0] * batch[1] * times > LIMIT


def _say(message: str) -> None:
    click.echo(message, err=True)


@click.command()
@click.option("--shape", type=click.Choice(list(SHAPES)), required=True)
@click.option("--against", required=True, help="Families of peers, with commas between them.")
@click.option("--batches", default=ALL, show_default=True, help="BATCHxTOKENS, with commas between them.")
@click.option("--threads", default=2, show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Adds to OUT.json, writes OUT.md.")
def main(shape: str, against: str, batches: str, threads: int, out: Path) -> None:
    """Measure ``shape`` against some peers and add the rows to the page."""
    path = out.with_suffix(".json")
    result: dict[str, Any] = read(path) if path.exists() else {"machine": describe("cpu"), "runs": []}
    call = "python -m fastflow.bench.research.shapes --shape SHAPE --against PEERS --batches … --out "
    result["command"] = f"{call}bench/results/{out.parent.name}/{out.name}"
    sizes = [(int(b), int(t)) for b, _, t in (size.partition("x") for size in batches.split(","))]
    result["runs"].append(measured(shape, against.split(","), sizes, threads))
    write(out, result, markdown)


if __name__ == "__main__":
    main()
