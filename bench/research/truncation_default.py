"""The scores of the model in the package when its embeddings are cut and stored in fewer bytes.

python -m fastflow.bench.research.truncation_default --sts DIR --out bench/results/truncation-default
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow import Runtime
from fastflow.bench.research.study import write
from fastflow.evaluation.evaluate import SEVEN, evaluate, read_pairs

FRACTIONS = (1, 2, 4, 8)
STORED = {"float32": 4.0, "int8": 1.0, "binary": 1 / 8}  # bytes of a dimension


def scored(runtime: Runtime, sts: Path, dim: int, precision: str) -> dict[str, Any]:
    """A row: Spearman ×100 on the seven sets, mean of `all` and of `wmean`, of ``dim`` dimensions in ``precision``."""

    def embed(texts: Sequence[str]) -> NDArray[np.float64]:
        stored = "ubinary" if precision == "binary" else precision
        z: NDArray[Any] = runtime.encode(texts, truncate_dim=dim, precision=stored)
        if precision == "binary":  # the cosine of signs orders pairs as the Hamming distance does
            z = 2.0 * np.unpackbits(np.asarray(z, np.uint8), axis=1, count=dim) - 1
        return np.asarray(z, np.float64)

    average = evaluate(embed, [read_pairs(sts / f"{name}.tsv") for name in SEVEN])["average"]
    bytes_ = int(np.ceil(dim * STORED[precision]))
    return {"dim": dim, "precision": precision, "bytes": bytes_, "all": average["all"], "wmean": average["wmean"]}


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    lines = [
        "# Truncation and precision of the model in the package",
        "",
        "Spearman ×100, mean of the seven STS sets, `all` and `wmean`, of embeddings with `--dim` and `--precision`.",
        f"Model: {result['fingerprint'][:12]}. Made by:",
        "",
        f"    {result['command']}",
        "",
        "| dimensions | stored as | bytes | all | wmean |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r['dim']} | {r['precision']} | {r['bytes']:,} | {r['all']:.1f} | {r['wmean']:.1f} |"
        for r in result["rows"]
    ]
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--sts", required=True, type=click.Path(exists=True, path_type=Path), help="Directory of the seven sets.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(sts: Path, out: Path) -> None:
    """Make the table of the model in the package."""
    with Runtime(dtype="float32", device="cpu") as runtime:
        rows = [scored(runtime, sts, runtime.dim // f, precision) for f in FRACTIONS for precision in STORED]
        command = f"python -m fastflow.bench.research.truncation_default --sts .../sts --out {out}"
        result = {"command": command, "fingerprint": runtime.fingerprint, "rows": rows}
    write(out, result, markdown)


if __name__ == "__main__":
    main()
