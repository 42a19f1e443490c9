"""The memory that one text needs beyond the open encoder, from 512 to 8,192 tokens.

    python -m fastflow.bench.research.long_memory --out bench/results/long-memory

Each row is a process of its own. It opens the encoder, computes a short text, gives free memory back to the system
(malloc_trim), resets the kernel's record of its peak, computes the long text, and reads the peak less what it held
before. Without malloc_trim the text would be computed in memory that drawing the weights has left.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from fastflow.bench.measure.machine import describe
from fastflow.bench.research.default_page import table
from fastflow.bench.research.long_texts import encoder_of, texts_of
from fastflow.bench.research.quality import write

ROWS = (("BERT-base", (512, 2048, 8192)), ("ModernBERT-base", (512, 2048, 8192)))
DTYPES = ("float32", "bfloat16")
THREADS = 2


def needed_mb(name: str, dtype: str, tokens: int) -> float:
    """MB beyond the open encoder, of this process."""
    encoder, _ = encoder_of(name, dtype, THREADS)
    encoder(*texts_of(1, 8))
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    held = _kb("VmRSS")
    encoder(*texts_of(1, tokens))
    return (_kb("VmHWM") - held) / 1024


def _kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    rows = [[r["model"], r["dtype"], f"{r['tokens']:,}", f"{r['mb']:.0f}"] for r in result["rows"]]
    return f"""# Memory of long texts

Made by

    {result["command"]}

One text, {THREADS} threads, random weights; a process of its own for each row. Scores of a whole text against itself,
in float32 for every head, would be {12 * 8192 * 8192 * 4 / 2**20:,.0f} MB at 8,192 tokens.

{table(["model", "dtype", "tokens", "MB beyond the open encoder"], rows)}
"""


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
@click.option("--one", nargs=3, type=str, hidden=True, help="MODEL DTYPE TOKENS: print the figure of one row.")
def main(out: Path, one: tuple[str, str, str] | None) -> None:
    """Measure the memory of long texts."""
    if one is not None:
        click.echo(needed_mb(one[0], one[1], int(one[2])))
        return
    rows = []
    for name, lengths in ROWS:
        for dtype in DTYPES:
            for tokens in lengths:
                command = [sys.executable, "-m", __spec__.name, "--out", str(out), "--one", name, dtype, str(tokens)]
                mb = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                rows.append({"model": name, "dtype": dtype, "tokens": tokens, "mb": round(mb, 1)})
                click.echo(json.dumps(rows[-1]), err=True)
    result = {"command": f"python -m {__spec__.name} --out {out}", "machine": describe("cpu"), "rows": rows}
    write(out, result, markdown(result))


if __name__ == "__main__":
    main()
