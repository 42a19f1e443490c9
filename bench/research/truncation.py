"""What to keep of an embedding that is cut, and how coarsely to store it: chosen on STS12-14, confirmed on the rest.

    python -m fastflow.bench.research.truncation --encoder DIR --sts DIR --corpus FILE --out bench/results/truncation

The ways to cut (B, D) to k dimensions, all fitted on the text that the calibration was fitted on, without labels:
*first* the first k; *variance* the k of most variance; *pivot* those that explain most of the others (pivoted Cholesky
of the covariance), both permutations and so free; *rotate* the leading principal directions of the embeddings, about
zero; *cross* the leading left singular vectors of the embeddings' covariance with the pooled vectors they were made of;
*whiten* the principal components divided by their deviation, which is another calibration; *spread* is *cross*, then a
random rotation within the k dimensions, which leaves cosines alone and evens out what signs can say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.quality import SEEDS, Calibrate, Embedded, calibration, sentences, write
from fastflow.evaluation.evaluate import SEVEN, Pairs, evaluate, read_pairs
from fastflow.train.data.corpus import read_corpus
from fastflow.train.data.embeddings import cache_directory, open_encoder

CHOSEN_ON, CONFIRMED_ON = SEVEN[:3], SEVEN[3:]
FRACTIONS = (2, 4, 8)
METHODS = ("raw", "standardize", "nullspace", "whiten", "flow", "whiten,flow")
CUTS = ("first", "variance", "pivot", "rotate", "cross", "whiten")
Matrix = NDArray[np.float64]
Change = Callable[[Matrix], Matrix]


def pivots(covariance: Matrix, count: int) -> NDArray[np.int64]:
    """The ``count`` channels that pivoted Cholesky takes first: each the one of most variance given those before it."""
    rest, factor = np.diag(covariance).copy(), np.zeros((len(covariance), count))
    order: list[int] = []
    for i in range(count):
        pivot = int(np.argmax(rest))
        column = covariance[:, pivot] - factor[:, :i] @ factor[pivot, :i]
        factor[:, i] = column / np.sqrt(max(rest[pivot], 1e-300))
        rest = rest - factor[:, i] ** 2
        rest[[*order, pivot]] = -np.inf
        order.append(pivot)
    return np.asarray(order)


class Fit:
    """What the ways to cut need to know of embeddings (n, D) and the pooled vectors they were made of."""

    def __init__(self, sample: Matrix, pooled: Matrix) -> None:
        self.sample, self.mean = sample, sample.mean(axis=0)
        self.covariance = np.cov(sample, rowvar=False)
        self.about_zero = np.linalg.eigh(sample.T @ sample / len(sample))[1][:, ::-1]
        self.values, self.vectors = (a[..., ::-1] for a in np.linalg.eigh(self.covariance))
        self.cross = np.linalg.svd((sample - self.mean).T @ (pooled - pooled.mean(axis=0)))[0]
        self.order = {"variance": np.argsort(-np.diag(self.covariance), kind="stable")}
        self.order["pivot"] = pivots(self.covariance, sample.shape[1] // min(FRACTIONS))

    def cut(self, rule: str, k: int) -> Change:
        """The function (B, D) -> (B, k) of ``rule``."""
        if rule == "first":
            return lambda z: z[:, :k]
        if rule in self.order:
            order = self.order[rule][:k]
            return lambda z: z[:, order]
        if rule == "whiten":
            leading = self.vectors[:, :k] / np.sqrt(np.maximum(self.values[:k], 1e-12))
            return lambda z: (z - self.mean) @ leading
        basis = (self.about_zero if rule == "rotate" else self.cross)[:, :k]
        if rule == "spread":
            basis = basis @ np.linalg.qr(np.random.default_rng(0).normal(size=(k, k)))[0]
        return lambda z: z @ basis


def stored(precision: str, sample: Matrix) -> Change:
    """What reading back embeddings stored in ``precision`` gives; int8's one range holds 4 of the largest deviation."""
    if precision == "float32":
        return lambda z: z
    if precision == "ubinary":
        return lambda z: np.where(z > 0, 1.0, -1.0)
    span = 4 * np.sqrt(np.square(sample).mean(axis=0).max())
    return lambda z: np.clip(np.rint(z * (127 / span)), -127, 127)


def raw(x: Matrix) -> Matrix:
    """No calibration."""
    return x


def chain(*changes: Change) -> Change:
    """One after the other."""

    def run(z: Matrix) -> Matrix:
        for change in changes:
            z = change(z)
        return z

    return run


class FittedMethod:
    """A method fitted in one setting: for every set a function from pooled embeddings, and what it was fitted on."""

    def __init__(
        self, method: str, embed: Embedded, sets: Sequence[Pairs], texts: Sequence[str] | None, seed: int
    ) -> None:
        self._embed, self._sets = embed, sets
        self._fits: dict[str, tuple[Calibrate, Fit]] = {}
        fitted: tuple[Calibrate, Fit] | None = None
        for pairs in sets:
            if texts is None or fitted is None:
                pooled = embed(sentences(pairs) if texts is None else texts)
                calibrate = raw if method == "raw" else calibration(method, pooled, seed)
                fitted = calibrate, Fit(calibrate(pooled), pooled)
            self._fits[pairs.name] = fitted
        self._vectors = {
            pairs.name: self._fits[pairs.name][0](embed([*pairs.first, *pairs.second])) for pairs in self._sets
        }

    def score(self, change: Callable[[Fit], Change]) -> dict[str, Any]:
        """Means over the sets that rules are chosen on and over the others; ``change`` is made from fitting texts."""
        rows, made = {}, {}
        for pairs in self._sets:
            fit = self._fits[pairs.name][1]
            if id(fit) not in made:
                made[id(fit)] = change(fit)
            vectors = made[id(fit)](self._vectors[pairs.name])
            where = {text: i for i, text in enumerate([*pairs.first, *pairs.second])}
            rows[pairs.name] = evaluate(lambda texts, v=vectors, w=where: v[[w[t] for t in texts]], [pairs])["rows"][0]  # type: ignore[misc]
        return {
            part: {kind: float(np.mean([rows[name][kind] for name in names])) for kind in ("all", "wmean")}
            for part, names in (("chosen_on", CHOSEN_ON), ("confirmed_on", CONFIRMED_ON))
        }


def variants(dim: int) -> list[tuple[str, int, str, Callable[[Fit], Change]]]:
    """(rule, k, precision, the change made from a fit) of every row."""

    def change(fit: Fit, rule: str, k: int, precision: str) -> Change:
        shorten = fit.cut(rule, k)
        return chain(shorten, stored(precision, shorten(fit.sample)))

    wanted = [("first", dim, precision) for precision in ("float32", "int8", "ubinary")]
    for k in (dim // part for part in FRACTIONS):
        wanted += [(rule, k, "float32") for rule in CUTS]
        wanted += [(rule, k, "int8") for rule in ("first", "cross")]
        wanted += [(rule, k, "ubinary") for rule in ("first", "cross", "spread")]
    return [(*row, partial(change, rule=row[0], k=row[1], precision=row[2])) for row in wanted]


def measure(embed: Embedded, sets: Sequence[Pairs], corpus: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each setting, method and variant, with a run a seed."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for setting, fit_on in (("target", None), ("corpus", corpus)):
        for method in METHODS:
            for seed in SEEDS if "flow" in method else SEEDS[:1]:
                fitted = FittedMethod(method, embed, sets, fit_on, seed)
                for rule, k, precision, change in variants(embed.dim):
                    key = {"setting": setting, "method": method, "cut": rule, "dim": k, "precision": precision}
                    row = rows.setdefault(tuple(key.values()), {**key, "runs": []})
                    row["runs"].append(fitted.score(change))
                click.echo(f"{setting}, {method}, seed {seed}", err=True)
    return list(rows.values())


def cell(row: dict[str, Any] | None) -> str:
    """``all`` and ``wmean`` over the choosing sets, then over the confirming ones; means over seeds."""
    if row is None:
        return ""
    means = [
        [np.mean([run[part][kind] for run in row["runs"]]) for kind in ("all", "wmean")]
        for part in ("chosen_on", "confirmed_on")
    ]
    return "; ".join(f"{a:.1f} / {w:.1f}" for a, w in means)


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    lines = [
        "# Truncation and precision",
        "",
        "Spearman ×100, **all / wmean**, as the mean over STS12-14 (what the way to cut was chosen on), then after the",
        "semicolon over STS15, STS16, STSb-test and SICK-R-test (what it was confirmed on). Flows: mean of seeds 0-4. "
        "Made by:",
        "",
        f"    {result['command']}",
        "",
        f"Encoder: {result['encoder']}, {result['dim']} dimensions, first-last pooling. Corpus: {result['corpus']}.",
        "",
        *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(),
    ]
    found = {(r["setting"], r["cut"], r["dim"], r["precision"], r["method"]): r for r in result["rows"]}
    for setting in ("target", "corpus"):
        lines += [
            "",
            f"## Fitted on the {setting}",
            "",
            "| dimensions | cut | stored as | " + " | ".join(METHODS) + " |",
        ]
        lines += ["| ---: | --- | --- |" + " ---: |" * len(METHODS)]
        for k, rule, precision in dict.fromkeys((r["dim"], r["cut"], r["precision"]) for r in result["rows"]):
            cells = [cell(found.get((setting, rule, k, precision, method))) for method in METHODS]
            lines.append(f"| {k} | {rule} | {precision} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *result.get("notes", [])]) + "\n"


@click.command()
@click.option("--encoder", required=True, help="Encoder directory, or default.")
@click.option("--sts", required=True, type=click.Path(exists=True, path_type=Path), help="Directory of the seven sets.")
@click.option("--corpus", required=True, help="The general corpus.")
@click.option("--cache", help="Cache directory for pooled embeddings.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(encoder: str, sts: Path, corpus: str, cache: str | None, out: Path) -> None:
    """Measure and write both files."""
    sets = [read_pairs(sts / f"{name}.tsv") for name in SEVEN]
    texts = read_corpus([corpus])
    everything = [text for pairs in sets for text in [*pairs.first, *pairs.second, *sentences(pairs)]] + texts
    embed = Embedded(open_encoder(encoder, "first-last", None), everything, cache_directory(cache))
    result = {
        "command": f"python -m fastflow.bench.research.truncation --encoder .../{Path(encoder).name} --sts .../sts "
        f"--corpus .../{Path(corpus).name} --out bench/results/{out.name}",
        "encoder": Path(encoder).name,
        "dim": embed.dim,
        "corpus": f"{Path(corpus).name} ({len(texts)} texts)",
        "rows": measure(embed, sets, texts),
    }
    write(out, result, markdown(result))


if __name__ == "__main__":
    main()
