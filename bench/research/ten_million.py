"""Ten million short lines embedded on one machine: rate, memory and bytes; and whether memory grows with the lines.

    python -m fastflow.bench.research.ten_million --lines 10000000
    python -m fastflow.bench.research.ten_million --lines 200000 --check

The lines are made on the fly, from a seed, and embedded by ``fastflow embed --precision int8`` with the model in the
package, in a process of its own whose resident memory is sampled. ``--check`` embeds half as many lines first and fails
where the whole takes more than SLACK MB above that.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

EVERY = 0.05  # seconds between samples
SLACK = 12.0  # MB by which two runs of equal memory may differ
SYLLABLES = ("ba", "do", "fi", "ka", "lu", "mo", "ne", "pi", "ra", "su", "ti", "vo")
FEWEST, MOST = 3, 12  # words of a line


class Measured(NamedTuple):
    """A run: seconds with and without the start of the process, peak of the resident memory, bytes in and out."""

    lines: int
    seconds: float
    per_second: float
    peak_mb: float
    input_mb: float
    output_mb: float


def write_lines(path: Path, count: int, seed: int = 0) -> None:
    """``count`` lines of FEWEST to MOST made-up words; the first lines do not depend on ``count``."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(20_000)]
    with path.open("w", encoding="ascii") as out:
        for _ in range(count):
            out.write(" ".join(rng.choices(words, k=rng.randint(FEWEST, MOST))) + "\n")


def embed(count: int, folder: Path, threads: int | None = None) -> Measured:
    """Make ``count`` lines in ``folder``, embed them and check the output's shape."""
    source, target = folder / f"{count}.txt", folder / f"{count}.npy"
    write_lines(source, count)
    command = [sys.executable, "-m", "fastflow.bench.research.ten_million", "--child"]
    command += ["embed", str(source), "-o", str(target), "--precision", "int8", "--quiet"]
    command += [] if threads is None else ["--threads", str(threads)]
    start, peak = time.monotonic(), 0.0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            peak = max(peak, resident_mb(process.pid))
            time.sleep(EVERY)
    seconds = time.monotonic() - start
    if process.returncode:
        raise click.ClickException(f"fastflow embed ended with {process.returncode}")
    if (shape := np.load(target, mmap_mode="r").shape)[0] != count:
        raise click.ClickException(f"{target} has shape {shape}, not {count} rows")
    sizes = [path.stat().st_size / 1e6 for path in (source, target)]
    source.unlink()
    target.unlink()
    return Measured(count, seconds, count / seconds, peak, *sizes)


def resident_mb(pid: int) -> float:
    """The resident memory of a process, without pages of mapped files; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon:")), 0.0)


def check_constant(half: Measured, whole: Measured) -> None:
    """Raise where the memory of ``whole`` is more than that of ``half``, SLACK aside."""
    if whole.peak_mb > half.peak_mb + SLACK:
        raise click.ClickException(
            f"memory grows with the lines: {half.peak_mb:.0f} MB for {half.lines:,}, {whole.peak_mb:.0f} MB for "
            f"{whole.lines:,}"
        )


@click.command()
@click.option("--lines", type=click.IntRange(2), default=10_000_000, show_default=True)
@click.option("--threads", type=int, help="As of fastflow embed.")
@click.option("--check", is_flag=True, help="Embed half as many first, and fail where memory grows.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Where lines and vectors lie for a while."
)
def main(lines: int, threads: int | None, check: bool, folder: Path | None) -> None:
    """Print a line of JSON a run."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        runs = [embed(count, Path(place), threads) for count in ([lines // 2] if check else []) + [lines]]
    for run in runs:
        click.echo(json.dumps({name: round(value, 1) for name, value in run._asdict().items()}))
    if check:
        check_constant(*runs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:  # fastflow, in the interpreter that runs this
        from fastflow.cli import main as fastflow

        fastflow(sys.argv[2:])
    else:
        main()
