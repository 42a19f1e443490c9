"""Cheap forms of recolour's matrix: what they keep of the gain, and what the dense matrix costs.

    python -m fastflow.bench.research.cheap --encoder DIR --data DIR --cache DIR --out bench/results/cheap

Cosines do not change under a rotation, so y = Q S P^T z + m, the matrix by its singular values, may as well be
P Q^T y = P S P^T z + P Q^T m, and that matrix is s I plus the K directions of P whose scales deviate most from s, the
geometric mean of the others. Scores are of STS12-14, seed 0, with the places of ``default``. Its time is that of a
folded flow with a nullspace of K/2 directions after it, whose products have as many numbers, besides the flow alone and
the flow with recolour. How the nullspace is folded is part of a row: a coupling of two hidden units a direction, or a
dense product for more directions than an eighth of the dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.measure.timing import Effort, alternate
from fastflow.bench.research.default_candidates import deciding
from fastflow.bench.research.default_fits import latent
from fastflow.bench.research.default_page import table
from fastflow.bench.research.default_places import MIXED, Bench, places
from fastflow.bench.research.quality import write
from fastflow.bench.suites.workloads import synthetic
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.kernels.flow.plan import Plan
from fastflow.plan.fold import fold
from fastflow.stages.calibration import Stage, apply
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import DEFAULTS, LARGE, background_size

AT = ("target", "snli", "mix")
SHARES = (0, 16, 64, 128)  # K of 256
WIDTHS, BATCHES = (256, 768), (1, 1024)


def cheap(stage: Stage, most: int | None) -> Stage:
    """Recolour with s I and ``most`` directions of its matrix; None: the dense one."""
    if most is None:
        return stage
    left, scale, right = np.linalg.svd(stage.params["matrix"])  # (D', D), rows of z times it
    deviating = np.argsort(-np.abs(np.log(scale) - np.log(scale).mean()))
    others = deviating[most:]
    common = np.exp(np.log(scale[others]).mean())
    scale = np.where(np.isin(np.arange(len(scale)), others), common, scale)
    params = stage.params | {"matrix": left * scale @ left.T, "shift": stage.params["shift"] @ right.T @ left.T}
    return Stage("recolour", stage.settings, params)


def scores(bench: Bench) -> dict[str, dict[str, float]]:
    """Place -> form -> mean Spearman x 100."""
    out = {}
    for place in places(bench, 0):
        if place.label not in AT:
            continue
        found: dict[str, list[list[float]]] = {}
        for name, rows, scored in deciding(place):
            pooled = bench.pooled_of(name, rows, MIXED)
            count = background_size(len(pooled))
            flow = latent(bench, name, rows, MIXED, 0, count).stages
            joint = joint_moments(flow, bench.ground(name, rows, MIXED, count))
            dense = fit_recolour(joint, len(joint.mean) // 2, **DEFAULTS.colour)
            wide = [stage.astype(np.float64) for stage in flow]
            for of, subset in scored:
                z = np.asarray(apply(wide, bench.pooled(of, name, rows, MIXED)))
                for most in (*SHARES, None):
                    y = np.asarray(apply([cheap(dense, most)], z))
                    found.setdefault("dense" if most is None else f"K = {most}", []).append(
                        bench.spearman(of, subset, y)
                    )
        out[place.label] = {form: float(np.mean(values)) for form, values in found.items()}
    return out


def times(threads: int) -> list[dict[str, Any]]:
    """Microseconds of a folded flow alone and with either ending, taken alternately: median, 20 and 80 % quantile."""
    out = []
    for dim in WIDTHS:
        workload = synthetic(DEFAULTS.levels, **LARGE, coupling="additive", rows=BATCHES[-1], dim=dim, recolour=True)
        flow, dense = workload.stages
        basis = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]
        forms = {"flow alone": [flow]}
        for most in SHARES[1:]:
            count = most * dim // WIDTHS[0]
            directions = np.ascontiguousarray(basis[: count // 2])
            forms[f"K = {count}"] = [flow, Stage("nullspace", {}, {"mean": np.zeros(dim), "directions": directions})]
        forms["dense"] = [flow, dense]
        plans = {name: fold(stages, dim) for name, stages in forms.items()}
        how = {name: folding(each) for name, each in plans.items()}
        flows = {name: CpuFlow([plan.astype(np.float32) for plan in each], threads) for name, each in plans.items()}
        for batch in BATCHES:
            calls = {name: _call(each, workload.rows(batch)) for name, each in flows.items()}
            taken = alternate(calls, Effort(min_runs=41, max_runs=41))
            measured = {name: {"median": 1e3 * t.median_ms, "p20": 1e3 * t.p20_ms, "p80": 1e3 * t.p80_ms}
                           | how[name] for name, t in taken.items()}  # fmt: skip
            out.append({"dim": dim, "batch": batch, "forms": measured})
    return out


def folding(plans: Sequence[Plan]) -> dict[str, Any]:
    """The hidden units of every coupling of the last plan, and whether it ends with a dense product."""
    arrays = plans[-1].arrays()
    return {"hidden": arrays["B"].shape[-1], "dense": arrays["S"].ndim == 2}


def _call(flow: CpuFlow, x: NDArray[np.float32]) -> Callable[[], Any]:
    z = np.empty_like(x)

    def call() -> None:
        flow(x, out=z)

    call()
    return call


@click.command()
@click.option("--encoder", required=True, help="Encoder directory, or default.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts/ and corpora/.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="That of bench.research.default.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
@click.option("--threads", default=2, help="Of the flow.")
def main(encoder: str, data: Path, cache: Path, out: Path, threads: int) -> None:
    """Measure cheap forms of recolour's matrix."""
    timed = times(threads)
    found = scores(Bench(encoder, data, cache))
    result: dict[str, Any] = {
        "command": f"python -m fastflow.bench.research.cheap --encoder .../{Path(encoder).name} --data .../{data.name} "
        f"--cache DIR --out {out}",
        "threads": threads,
        "microseconds": timed,
        "spearman": found,
    }
    write(out, result, markdown(result))


def mark(name: str, forms: dict[str, Any]) -> str:
    """The sign of a footnote, for a form that is folded otherwise than its name says."""
    if forms[name]["hidden"] > forms["flow alone"]["hidden"]:
        return " \\*"
    return " †" if name.startswith("K") and forms[name]["dense"] else ""


def cell(name: str, forms: dict[str, Any]) -> str:
    """A time, its quantiles if they are known, and its ratio to the flow alone."""
    taken = forms[name]
    spread = f", {taken['p20']:.1f} to {taken['p80']:.1f}" if "p20" in taken else ""
    return f"{taken['median']:.1f}{spread} ({taken['median'] / forms['flow alone']['median']:.1f})"


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    forms = list(next(iter(result["spearman"].values())))
    largest = result["microseconds"][-1]["forms"]
    alone, widest = largest["flow alone"], max(largest.values(), key=lambda form: form["hidden"])
    rows = [[form, *(f"{result['spearman'][place][form]:.2f}" for place in AT)] for form in forms]
    parts = []
    for dim in WIDTHS:
        of = [row for row in result["microseconds"] if row["dim"] == dim]
        lines = [
            [name + mark(name, of[0]["forms"]), *(cell(name, row["forms"]) for row in of)] for name in of[0]["forms"]
        ]
        parts.append(table([f"{dim} dimensions", *(f"batch {row['batch']:,}" for row in of)], lines))
    times = "\n\n".join(parts)
    return f"""# Cheap forms of recolour's matrix

Made by

    {result["command"]}

The dense matrix against s I plus the K of 256 directions whose scales deviate most. Spearman x100 on STS12-14, mean of
`all` and `wmean`, fitted on the texts named above (seed 0):

{table(["form", *AT], rows)}

Microseconds of a call with {result["threads"]} threads, taken alternately: the median, the 20 and 80 % quantiles if the
run kept them, and in brackets the median over that of the flow alone. The rows with K are a nullspace of K/2 directions
after the flow, whose products have as many numbers. A quarter of the directions, half of the dense matrix's
multiplications, loses up to 0.3 points; half of them lose nothing, and have as many. The dense matrix is the default
because no form is faster at 768 dimensions and scores as much.

{times}

\\* No outlier. The nullspace is folded to a coupling of two hidden units a direction, and a plan gives all couplings as
many hidden units as its widest has: those of the flow take {widest["hidden"]} in place of {alone["hidden"]}.
The row says nothing of a product with {widest["hidden"] // 2} directions by itself.

† More directions than an eighth of the dimensions: folded to the dense product.
"""


if __name__ == "__main__":
    main()
