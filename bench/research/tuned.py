"""The mean cosine of unrelated sentences in untuned and tuned encoders: where ``fastflow-train`` draws the line.

    python -m fastflow.bench.research.tuned ENCODER ... --out bench/results/tuned

Each ENCODER is a directory; the mean cosine is that of ``train.choice.tuned``, from the last layer and all others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastflow.bench.research.default_page import table
from fastflow.bench.research.quality import write
from fastflow.model.architecture import encoder_size, read_config
from fastflow.train.choice.tuned import CONE, crowding, probe


@click.command()
@click.argument("encoders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(encoders: tuple[Path, ...], out: Path) -> None:
    """Measure the mean cosine of unrelated sentences."""
    found: dict[str, list[float]] = {}
    for encoder in encoders:
        layers = encoder_size(read_config(encoder), encoder).layers
        pooled = [*(f"mean-of-layers:{layer}" for layer in range(layers)), "last"]
        found[encoder.name] = [crowding(encoder, layer) for layer in pooled]
    result: dict[str, Any] = {
        "command": f"python -m fastflow.bench.research.tuned {' '.join(f'.../{e.name}' for e in encoders)} --out {out}",
        "threshold": CONE,
        "sentences": len(probe()),
        "mean_cosine": found,
    }
    rows = [[name, f"{values[-1]:.2f}", ", ".join(f"{v:.2f}" for v in values[:-1])] for name, values in found.items()]
    page = f"""# Untuned and tuned encoders

Made by

    {result["command"]}

Mean cosine of {result["sentences"]} sentences of unrelated subjects (`train/choice/probe.txt`), mean pooling. An
encoder whose last layer is below {CONE} is taken for one that was tuned for similarity, and left as it is.

{table(["encoder", "last layer", "layers below, from the embeddings up"], rows)}
"""
    write(out, result, page)


if __name__ == "__main__":
    main()
