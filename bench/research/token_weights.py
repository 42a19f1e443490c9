"""Token weights, what a calibration adds to them, what STS12-14 choose, and what fastflow-train makes by default.

    python -m fastflow.bench.research.token_weights --encoder DIR --data DIR --cache DIR
        --out bench/results/token-weights

Everything is fastflow-train's own code: ``weigh``, ``embed_corpus``, ``fit``, ``choose``. Weights are always counted in
the texts that the calibration is fitted on. The flows and whitenings of plain pooling that the default is held against
are those of quality.json beside OUT, where it has them. ``token_weights_page`` makes the page. What is finished is kept
in the cache, so that an interrupted run goes on: give another after a change of the code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.bench.research.quality import SEEDS, SHAPE, write
from fastflow.bench.research.study_data import CORPORA, LARGE, Matrix, read_texts
from fastflow.bench.research.token_weights_page import TARGET, blind_choice, claims, defaults, markdown
from fastflow.evaluation.evaluate import SEVEN, read_pairs, score
from fastflow.stages.calibration import Stage, apply
from fastflow.stages.vectors import paired_cosine
from fastflow.train.choice.selection import choose
from fastflow.train.choice.separability import make_views
from fastflow.train.data.embeddings import FrozenEncoder, embed_corpus, open_encoder
from fastflow.train.data.token_weights import A, weigh
from fastflow.train.methods.against import fit_named
from fastflow.train.methods.chain import Fitted, fit
from fastflow.train.methods.loop import Schedule
from fastflow.train.methods.names import parse_method

METHODS = (  # simplest first: of those that do equally well the first is chosen
    "none", "components:1", "components:2", "components:3", "components:10", "standardize",
    "nullspace:1", "nullspace:2", "nullspace:3", "nullspace:10", "whiten", "flow",
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """The encoder ``plain`` and, by what was counted, with token weights; texts by set and corpus; directories."""

    plain: FrozenEncoder
    weighted: dict[str, FrozenEncoder]
    texts: dict[str, list[str]]
    data: Path
    cache: Path

    def pooled(self, name: str, counted: str | None) -> Matrix:
        """(n, D) float64, with the weights of ``counted`` or none."""
        encoder = self.plain if counted is None else self.weighted[counted]
        return np.asarray(embed_corpus(self.texts[name], encoder, self.cache), np.float64)

    def spearman(self, name: str, counted: str | None, stages: Sequence[Stage]) -> list[float]:
        """[all, wmean] of a set."""
        pairs = read_pairs(self.data / "sts" / f"{name}.tsv")
        where = {text: i for i, text in enumerate(self.texts[name])}
        z = np.asarray(apply([stage.astype(np.float64) for stage in stages], self.pooled(name, counted)))
        first, second = (z[[where[text.strip()] for text in side]] for side in (pairs.first, pairs.second))
        row = score(pairs, paired_cosine(first, second))
        return [row["all"], row["wmean"]]

    def fill(self, name: str, encoders: Sequence[FrozenEncoder]) -> None:
        """Put the embeddings of a set's texts by all of ``encoders`` into the cache."""
        for encoder in encoders:
            embed_corpus(self.texts[name], encoder, self.cache)


def make_bench(encoder: str, pooling: str, corpora: Sequence[str], data: Path, cache: Path) -> Bench:
    """The sets and ``corpora`` embedded with ``pooling``, plain and with every weighting that they are scored with."""
    plain = open_encoder(encoder, pooling, None)
    texts = {name: read_texts(name, data) for name in (*SEVEN, *corpora)}
    bench = Bench(plain, {name: weigh(plain, found) for name, found in texts.items()}, texts, data, cache)
    for name in texts:
        bench.fill(name, [plain, *(bench.weighted[n] for n in ((name, *corpora) if name in SEVEN else (name,)))])
        click.echo(f"embedded {name}: {len(texts[name])} texts", err=True)
    return bench


def kept(make: Callable[..., Any], bench: Bench, *which: Any) -> Any:
    """``make(bench, *which)`` as JSON gives it back, made once and then read from the cache."""
    path = bench.cache / f"{'-'.join(map(str, (make.__name__, *which)))}.json"
    if not path.exists():
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps(make(bench, *which)))
        unfinished.replace(path)
    return json.loads(path.read_text())


def fitted_on(where: str) -> list[tuple[str, tuple[str, ...]]]:
    """What is fitted, and the sets that it is scored on: a corpus on all, a target's own sentences on itself."""
    return [(name, (name,)) for name in SEVEN] if where == TARGET else [(where, SEVEN)]


def candidates(bench: Bench, where: str, methods: Sequence[str] = METHODS) -> list[dict[str, Any]]:
    """``methods``, with plain pooling and with token weights: closed forms, and the flow the rule keeps, seed 0."""
    rows = []
    for weights in ("plain", "sif"):
        for method in methods:
            scores: dict[str, list[float]] = {}
            for name, sets in fitted_on(where):
                counted = None if weights == "plain" else name
                flow = method == "flow"
                stages = fit_flow(bench, name, counted) if flow else fit_named(method, bench.pooled(name, counted))
                scores |= {each: bench.spearman(each, counted, stages) for each in sets}
            rows.append({"fitted_on": where, "weights": weights, "method": method, "spearman": scores})
        click.echo(f"candidates, {weights}, {where}", err=True)
    return rows


def fit_flow(bench: Bench, name: str, counted: str | None) -> Sequence[Stage]:
    """fastflow-train's default flow on the texts ``name``, stopped by the rule."""
    encoder = bench.plain if counted is None else bench.weighted[counted]
    pooled, views = embed_corpus(bench.texts[name], encoder, bench.cache), make_views(bench.texts[name], encoder)
    return fit(parse_method("flow"), pooled, SHAPE, Schedule(), views=views).stages


def default_run(bench: Bench, where: str, seed: int) -> dict[str, Any]:
    """fastflow-train's default path, from the texts to the choice, and the scores of what it would ship."""
    chosen: dict[str, Any] = {}
    scores: dict[str, list[float]] = {}
    for name, sets in fitted_on(where):
        texts, frozen = bench.texts[name], bench.weighted[name]
        pooled = embed_corpus(texts, frozen, bench.cache)
        views = make_views(texts, frozen, "cpu", seed)

        def once(method: str, pooled: Any = pooled, views: Any = views) -> Fitted:
            return fit(parse_method(method), pooled, SHAPE, Schedule(seed=seed), views=views)

        choice = choose("auto", True, once, views)
        chosen[name] = choice.record["separability"] | {"chosen": choice.method}
        scores |= {each: bench.spearman(each, name, choice.fitted.stages) for each in sets}
        click.echo(f"default, {name}, seed {seed}: {choice.method}", err=True)
    return {"fitted_on": where, "seed": seed, "choices": chosen, "spearman": scores}


def plain_flow(bench: Bench, where: str) -> dict[str, Any]:
    """The flow of quality.md, seed 0, on plain pooling: for corpora that quality.json has no flow for."""
    pooled = embed_corpus(bench.texts[where], bench.plain, bench.cache)
    stages = fit(parse_method("flow"), pooled, SHAPE, Schedule()).stages
    return {"fitted_on": where, "spearman": {name: bench.spearman(name, None, stages) for name in SEVEN}}


def published(path: Path) -> list[dict[str, Any]]:
    """The seven-set means of whitening and flows on plain pooling that quality.json has, over its seeds."""
    rows = []
    for row in json.loads(path.read_text())["rows"]:
        method, _, where = row["name"].partition(", ")
        if method in ("whiten", "flow"):
            means = [[run["mean"][kind] for kind in ("all", "wmean")] for run in row["runs"]]
            rows.append({"fitted_on": TARGET if where.startswith("target") else "snli", "name": row["name"]})
            rows[-1]["mean"] = [float(value) for value in np.mean(means, axis=0)]
    return rows


def inputs(command: Callable[..., None]) -> Callable[..., None]:
    """The options --encoder, --data, --cache and --out of a command."""
    path = click.Path(path_type=Path)
    there = click.Path(exists=True, path_type=Path)
    for option in (
        click.option("--out", required=True, type=path, help="Writes OUT.md and OUT.json."),
        click.option("--cache", required=True, type=path, help="Where pooled embeddings are kept."),
        click.option("--data", required=True, type=there, help="Holds sts/ and corpora/."),
        click.option("--encoder", required=True, help="Encoder directory, or default."),
    ):
        command = option(command)
    return command


@click.command()
@inputs
def main(encoder: str, data: Path, cache: Path, out: Path) -> None:
    """Measure token weights."""
    corpora = [*CORPORA, *LARGE]
    bench = make_bench(encoder, "first-last", corpora, data, cache)
    result: dict[str, Any] = {
        "command": f"python -m fastflow.bench.research.token_weights --encoder .../{Path(encoder).name} "
        f"--data .../{data.name} --cache DIR --out {out}",
        "encoder": Path(encoder).name,
        "a": A,
        "texts": {name: len(found) for name, found in bench.texts.items()},
        "published": published(out.with_name("quality.json")),
    }
    fits = (TARGET, *corpora)
    result["candidates"] = [row for where in fits for row in kept(candidates, bench, where)]
    result["choice"] = blind_choice(result)
    result["default"] = [kept(default_run, bench, where, seed) for where in fits for seed in SEEDS]
    known = {row["fitted_on"] for row in result["published"]}
    result["plain_flow"] = [kept(plain_flow, bench, where) for where in fits if where not in known]
    result["defaults"] = defaults(result)
    result["claims"] = claims(result)
    write(out, result, markdown(result))


if __name__ == "__main__":
    main()
