"""The tables of docs/kernels.md, out of the kept measurements of the kernel ladder.

    python -m fastflow.bench.research.ladder_page

prints them; the page holds them word for word, which a test checks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEPT = Path(__file__).resolve().parents[1] / "results" / "ladder.json"
FLOW = {  # a step in the file: its name on the page
    "loops in Python": "loops over layers, channels and weights, in Python",
    "loops in C": "the same loops in C",
    "loops in C, folded": "loops in C over the folded plan",
    "loops in C, reordered sums": "the same loops in C, the compiler free to reorder sums (`-ffast-math`)",
    "loops in C, folded, reordered sums": "over the folded plan, likewise",
    "NumPy": "NumPy, layer by layer",
    "NumPy, folded": "NumPy, folded",
    "PyTorch": "PyTorch, layer by layer",
    "PyTorch, leanest form": "PyTorch, its leanest form",
    "PyTorch, folded": "PyTorch, folded",
    "PyTorch, folded, state form": "PyTorch, folded, state form",
    "compiled, portable": "compiled, portable C",
    "compiled, avx2": "compiled, AVX2",
    "as shipped": "compiled, AVX-512: as shipped",
}
ENCODER = {
    "NumPy, float32": "NumPy, float32",
    "PyTorch, float32": "PyTorch, float32",
    "PyTorch, bfloat16": "PyTorch, bfloat16",
    "compiled, portable, float32": "compiled, portable C, float32",
    "compiled, avx2, float32": "compiled, AVX2, float32",
    "as shipped, float32": "compiled, AVX-512, float32: as shipped",
    "as shipped, bfloat16": "compiled, AVX-512, bfloat16: as shipped without AMX, weights widened",
    "compiled, amx, bfloat16": "compiled, AMX, bfloat16: as shipped",
    "as shipped, int8": "compiled, AVX-512 with VNNI, int8: as shipped without AMX",
    "compiled, amx, int8": "compiled, AMX, int8: as shipped",
}
PADDING = ("as shipped", "padded, sorted by length", "padded, in the order given")
Report = dict[str, Any]


def times(value: float) -> str:
    """A ratio with the digits that a busy machine leaves it."""
    return f"{value:,.0f} ×" if value >= 20 else f"{value:.1f} ×" if value >= 2 else f"{value:.2f} ×"


def rows(report: Report, ladder: str, **where: Any) -> dict[str, dict[str, Any]]:
    """{step: row} of one comparison."""
    wanted = {"ladder": ladder, **where}
    return {row["step"]: row for row in report["rows"] if wanted.items() <= row.items()}


def flow(report: Report) -> list[str]:
    """The steps of the flow, by their time over that of the kernel as shipped."""
    one, many = rows(report, "flow", batch=1), rows(report, "flow", batch=1024)
    lines = ["| step | one vector | 1,024 vectors | largest error, 1,024 vectors |", "| --- | ---: | ---: | ---: |"]
    for step, name in FLOW.items():
        gain, error = (times(many[step]["gain"]), f"{many[step]['max_abs_err']:.1e}") if step in many else ("", "")
        lines.append(f"| {name} | {times(one[step]['gain'])} | {gain} | {error} |")
    return lines


def encoder(report: Report) -> list[str]:
    """The steps of the encoder, by their time over that of the kernel as shipped in float32."""
    start, shipped = rows(report, "encoder, from the start"), rows(report, "encoder", batch=8)
    lines = ["| step | 8 texts of 32 tokens | least cosine with PyTorch in float32 |", "| --- | ---: | ---: |"]
    for step, name in ENCODER.items():
        row = start.get(step) or shipped[step]
        own = start if step in start else shipped
        gain = row["median_ms"] / own["as shipped, float32"]["median_ms"]
        lines.append(f"| {name} | {times(gain)} | {row['least_cosine']:.6f} |")
    return lines


def left_out(report: Report) -> list[str]:
    """What the kernel takes without one step, over what it takes as shipped."""
    one, many = rows(report, "flow", batch=1), rows(report, "flow", batch=1024)
    lines = ["| left out | in | time without it |", "| --- | --- | ---: |"]
    lines.append(f"| several sums at once | flow, one vector | {times(one['without several sums']['gain'])} |")
    lines.append(f"| tiles | flow, 1,024 vectors | {times(many['without tiles']['gain'])} |")
    for lacks in ("prefetch", "groups"):
        for batch in (8, 32):
            of_batch = rows(report, "encoder", batch=batch)
            gains = [times(of_batch[f"without {lacks}, {dtype}"]["gain"]) for dtype in ("float32", "int8")]
            where = f"encoder, {batch} texts of 32 tokens, float32 and int8"
            lines.append(f"| {lacks} | {where} | {' and '.join(gains)} |")
    return lines


def padding(report: Report) -> list[str]:
    """The kernel on real sentences and on as many tokens as padding makes of them."""
    found = rows(report, "padding")
    lines = ["| 64 sentences of STSb | tokens | time |", "| --- | ---: | ---: |"]
    return lines + [f"| {step} | {found[step]['tokens']:,} | {times(found[step]['gain'])} |" for step in PADDING]


def tables(report: Report) -> dict[str, str]:
    """The tables by name."""
    made = {"flow": flow, "encoder": encoder, "left out": left_out, "padding": padding}
    return {name: "\n".join(table(report)) for name, table in made.items()}


def main() -> None:
    """Print the tables of the kept measurements."""
    print("\n\n".join(tables(json.loads(KEPT.read_text(encoding="utf-8"))).values()))


if __name__ == "__main__":
    main()
