"""The default of fastflow-train: chosen on STS12-14 among one table of candidates, then measured on everything.

    python -m fastflow.bench.research.default --encoder DIR --data DIR --cache DIR --out bench/results/default

Choosing looks at STS12-14 alone; the final table has all sets and several seeds. The fits, the token weights
and the decision are fastflow-train's own functions. Finished places are kept in the cache: give another after a change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.bench.research.default_candidates import beside, candidates, equal, layers, priors, sizes
from fastflow.bench.research.default_choice import blind_choice, claims
from fastflow.bench.research.default_fits import stages_of
from fastflow.bench.research.default_page import markdown
from fastflow.bench.research.default_places import (
    CHOOSING,
    CORPORA,
    CUT_FROM,
    DECIDING,
    EARLIER,
    MIXED,
    PAPER,
    PLAIN,
    Bench,
    Place,
    decides,
    places,
)
from fastflow.bench.research.states import BACKGROUND, each
from fastflow.bench.research.study import write
from fastflow.evaluation.evaluate import SEVEN
from fastflow.stages.calibration import apply
from fastflow.train.options import POOLING

TRIED = range(5)  # seeds of the choice
SEEDS = {"target": 5, "corpora": 5, "few": 5, "subsets": 5}  # runs of a place, by its group
COLUMNS = {  # of the final table: name -> weights and method
    "raw": (PLAIN, "none"), "weights": (MIXED, "none"), "components:1": (MIXED, "components:1"),
    "the earlier default": (EARLIER, "components:1"), "soft whitening": (MIXED, "whiten,recolour"),
    "latent": (MIXED, "flow"), "latent, equal weights": (PLAIN, "flow"), "default": (MIXED, "auto"),
}  # fmt: skip
SEEDED = ("default",)
BY_SEED = ("raw", "components:1", "default")  # where the seed draws the texts


def measure(bench: Bench, place: Place) -> dict[str, Any]:
    """Every column of the final table at one place."""
    scores: dict[str, dict[str, list[float]]] = {}
    kept = []
    for name, rows, scored in place.parts:
        for column, how in COLUMNS.items():
            if place.seed and column not in (BY_SEED if place.group == "few" else SEEDED):
                continue
            stages, method = stages_of(bench, name, rows, how, place.seed)
            wide = [stage.astype(np.float64) for stage in stages]
            for of, subset in scored:
                z = np.asarray(apply(wide, bench.pooled(of, name, rows, how[0])))
                scores.setdefault(column, {})[of if subset is None else subset] = bench.spearman(of, subset, z)
            kept += [method] * (column == "default")
    texts = sum(len(bench.states.texts(name)) if rows is None else len(rows) for name, rows, _ in place.parts)
    return {
        "group": place.group,
        "place": place.label,
        "seed": place.seed,
        "texts": texts,
        "kept": kept,
        "scores": scores,
    }


def kept(make: Any, bench: Bench, place: Place) -> Any:
    """``make(bench, place)`` as JSON gives it back, made once and then read from the cache."""
    path = bench.states.root.parent / f"{make.__name__}-{place.label}-{place.seed}.json".replace("/", "_").replace(
        ", ", "-"
    )
    if not path.exists():
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps(make(bench, place)))
        unfinished.replace(path)
        click.echo(path.stem, err=True)
    return json.loads(path.read_text())


def blind(bench: Bench, place: Place) -> dict[str, Any]:
    """The scores of every candidate at one place that decides: beyond seed 0 only of candidates that the seed changes.

    Flows that are fitted to the corpus alone are tried with seed 0.
    """
    both = place.seed == 0 or place.group == "few"
    found = [kept(make, bench, place) for make in ([candidates, beside] if both else [beside])]
    scores = {label: score for row in found for label, score in row["scores"].items()}
    return {**found[0], "scores": scores}


@click.command()
@click.option("--encoder", required=True, help="Encoder directory, or default.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts/ and corpora/.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Where states and results are kept.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(encoder: str, data: Path, cache: Path, out: Path) -> None:
    """Choose the default and measure it."""
    bench = Bench(encoder, data, cache)
    few = {BACKGROUND, *CHOOSING, *DECIDING["corpora"]}  # what the choice of the layers looks at
    for pooling, states in bench.pooled_as.items():
        wanted = {*SEVEN, *CORPORA, *CUT_FROM, BACKGROUND} if pooling in (POOLING, PAPER) else few
        each(sorted(wanted), states, lambda line: click.echo(line, err=True))
    result: dict[str, Any] = {
        "command": f"python -m fastflow.bench.research.default --encoder .../{Path(encoder).name} "
        f"--data .../{data.name} --cache DIR --out {out}",
        "encoder": Path(encoder).name,
        "candidates": [blind(bench, place) for seed in TRIED for place in places(bench, seed) if decides(place)],
    }
    result["choice"] = blind_choice(result["candidates"])
    broad = [place for place in places(bench, 0) if place.group in ("target", "corpora") and decides(place)]
    result["sizes"] = [kept(sizes, bench, place) for place in broad]
    result["layers"] = [kept(layers, bench, place) for place in broad]
    result["equal"] = [kept(equal, bench, place) for place in broad]
    own = [place for place in places(bench, 0) if place.group in ("target", "subsets") and decides(place)]
    result["priors"] = [kept(priors, bench, place) for place in own]
    runs = [place for seed in range(max(SEEDS.values())) for place in places(bench, seed) if seed < SEEDS[place.group]]
    result["runs"] = [kept(measure, bench, place) for place in runs]
    result["claims"] = claims(result["runs"])
    write(out, result, markdown)


if __name__ == "__main__":
    main()
