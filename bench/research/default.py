"""The default of fastflow-train: chosen on STS12-14 among one table of candidates, then measured on everything.

    python -m fastflow.bench.research.default --encoder DIR --data DIR --cache DIR --out bench/results/default

A *place* is a choice of texts to fit on and of sets to score on. Places come in groups: *target*, every set on its own
sentences; *corpora*; *few*, 100 to 3,000 texts of a corpus; *subsets*, the sentences of a subset on itself. Choosing
looks at STS12-14 alone, seed 0; the final table has all sets and several seeds. The fits, the token weights and the
decision are fastflow-train's own functions. Finished places are kept in the cache: give another after a change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.bench.research.default_page import blind_choice, claims, markdown
from fastflow.bench.research.quality import write
from fastflow.bench.research.states import Rows, States, each
from fastflow.evaluation.evaluate import SEVEN, Pairs, read_pairs, score
from fastflow.stages.calibration import Stage, apply
from fastflow.stages.vectors import paired_cosine
from fastflow.train.choice.selection import AUTO, choose
from fastflow.train.choice.separability import Views
from fastflow.train.data.background import background
from fastflow.train.data.token_weights import NARROW, PRIOR, A, sif_weights
from fastflow.train.methods.chain import Fitted, fit
from fastflow.train.methods.loop import Schedule
from fastflow.train.methods.names import parse_method, shipped
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import DEFAULTS, FEWEST
from fastflow.train.voice import SILENT

CHOOSING = SEVEN[:3]
CORPORA = ("snli", "news", "qnli", "wiki", "wiki-sentences", "novels", "snli500", "mix")
CUT_FROM = ("snli", "news", "wiki-sentences", "novel-sentences")
DECIDING = {"corpora": {"snli", "news", "wiki-sentences", "mix"}, "few": {"snli", "news"}}
SEEDS = {"target": 3, "corpora": 1, "few": 1, "subsets": 2}  # runs of a place, by its group
SIZES = (100, 300, 1000, 3000)
PLAIN, EARLIER, MIXED = ("none", 0.0, A), ("sif", 0.0, A), ("sif", None, A)  # weights, prior, constant
COLUMNS = {  # of the final table: name -> weights and method
    "raw": (PLAIN, "none"), "weights": (MIXED, "none"), "components:1": (MIXED, "components:1"),
    "the earlier default": (EARLIER, "components:1"), "soft whitening": (MIXED, "whiten,recolour"),
    "latent": (MIXED, "flow"), "latent, equal weights": (PLAIN, "flow"), "default": (MIXED, "auto"),
}  # fmt: skip
SEEDED = ("latent", "latent, equal weights", "default")
Weighting = tuple[str, float | None, float]


@dataclass(frozen=True)
class Place:
    """Parts, each the texts ``rows`` (None: all) of ``name`` and the (set, subset or None) scored with that fit."""

    group: str
    label: str
    parts: tuple[tuple[str, Rows | None, tuple[tuple[str, str | None], ...]], ...]
    seed: int = field(default=0)


class Bench:
    """Everything that is scored: states, pairs and weights, remembered."""

    def __init__(self, states: States) -> None:
        self.states = states
        self.vocabulary = int(json.loads((states.encoder.directory / "config.json").read_text())["vocab_size"])
        self.background = background(states.tokenize, self.vocabulary)
        self._pooled: dict[tuple[Any, ...], Any] = {}

    @cache  # noqa: B019 - one bench lives as long as the process
    def pairs(self, name: str) -> tuple[Pairs, Rows, Rows]:
        """The scored pairs of a set and the text numbers of both sides."""
        pairs, where = read_pairs(self.states.data / "sts" / f"{name}.tsv"), dict[str, int]()
        where = {text: i for i, text in enumerate(self.states.texts(name))}
        first, second = (np.array([where[text.strip()] for text in side]) for side in (pairs.first, pairs.second))
        return pairs, first, second

    def subsets(self, name: str) -> list[str]:
        """The subset of each pair; of STSb its genre and file."""
        return ["/".join(subset.split("/")[:2]) for subset in self.pairs(name)[0].subsets]

    def rows(self, name: str, subset: str) -> Rows:
        """The texts of one subset."""
        _, first, second = self.pairs(name)
        inside = np.array(self.subsets(name)) == subset
        return np.unique(np.concatenate([first[inside], second[inside]]))

    def weights(self, name: str, rows: Rows | None, weighting: Weighting) -> Any:
        """(vocabulary,) token weights counted in the texts ``rows``."""
        if weighting[0] == "none":
            return np.ones(self.vocabulary, np.float32)
        counted = np.arange(len(self.states.texts(name))) if rows is None else rows
        counts = self.states.counts(name, counted, self.vocabulary)
        return sif_weights(counts, self.background, weighting[1], weighting[2])

    def pooled(self, of: str, name: str, rows: Rows | None, weighting: Weighting) -> Any:
        """(n, D) of the set ``of``, weighted as counted in the texts ``rows`` of ``name``; the last are remembered."""
        key = (
            (of, weighting)
            if weighting[0] == "none"
            else (of, name, None if rows is None else rows.tobytes(), weighting)
        )
        if key not in self._pooled:
            while len(self._pooled) > 40:
                self._pooled.pop(next(k for k in self._pooled if len(k) == 4))
            self._pooled[key] = self.states.pooled(of, self.weights(name, rows, weighting))
        return self._pooled[key]

    def spearman(self, name: str, subset: str | None, z: Any) -> list[float]:
        """[all, wmean] of a set's embeddings ``z``; of a subset twice its one figure."""
        pairs, first, second = self.pairs(name)
        if subset is not None:
            inside = np.array(self.subsets(name)) == subset
            first, second = first[inside], second[inside]
            pairs = Pairs(name, [subset] * int(inside.sum()), pairs.scores[inside], [], [])
        row = score(pairs, paired_cosine(z[first], z[second]))
        return [row["all"], row["wmean"]]


def places(bench: Bench, seed: int) -> Iterator[Place]:
    """All places of ``seed``, which draws the texts of *few*."""
    yield Place("target", "target", tuple((name, None, ((name, None),)) for name in SEVEN), seed)
    whole = tuple((name, None) for name in SEVEN)
    for corpus in CORPORA:
        yield Place("corpora", corpus, ((corpus, None, whole),), seed)
    for corpus in CUT_FROM:
        viewed = bench.states.viewed(corpus)
        for size in SIZES:
            drawn = np.sort(np.random.default_rng(seed).permutation(viewed)[:size])
            yield Place("few", f"{corpus}, {size}", ((corpus, drawn, whole),), seed)
    for name in SEVEN:
        for subset in sorted(set(bench.subsets(name))):
            yield Place("subsets", f"{name}, {subset}", ((name, bench.rows(name, subset), ((name, subset),)),), seed)


def decides(place: Place) -> bool:
    """Whether the choice looks at ``place``: all the others confirm it."""
    corpora = {name for name, _, _ in place.parts}
    if place.group == "subsets":
        return corpora <= set(CHOOSING)
    return place.group == "target" or corpora <= DECIDING[place.group]


def latent(bench: Bench, name: str, rows: Rows | None, weighting: Weighting, seed: int) -> tuple[Any, Views, Fitted]:
    """(pooled, views, the flow that the rule keeps) of one part."""
    weights = bench.weights(name, rows, weighting)
    pooled = bench.states.pooled(name, weights, rows).astype(np.float32)
    views = bench.states.views(name, weights, np.arange(len(bench.states.texts(name))) if rows is None else rows)
    shape = DEFAULTS.shape(len(pooled))
    return pooled, views, fit(parse_method("flow"), pooled, shape, Schedule(seed=seed), views=views, voice=SILENT)


def stages_of(
    bench: Bench, name: str, rows: Rows | None, column: tuple[Weighting, str], seed: int
) -> tuple[list[Stage], str]:
    """The stages of one column fitted on one part, and the method that is kept."""
    weighting, method = column
    weights = bench.weights(name, rows, weighting)
    pooled = bench.states.pooled(name, weights, rows).astype(np.float32)
    if len(pooled) < {"auto": FEWEST, "flow": DEFAULTS.batch_size}.get(method, 0):
        return [], "none"
    if method == "auto":
        views = bench.states.views(name, weights, np.arange(len(bench.states.texts(name))) if rows is None else rows)

        def once(chosen: str) -> Fitted:
            links, shape = shipped(parse_method(chosen), latent=False), DEFAULTS.shape(len(pooled))
            return fit(links, pooled, shape, Schedule(seed=seed), DEFAULTS.colour, views=views, voice=SILENT)

        choice = choose(AUTO, once, views, automatic=True)
        return choice.fitted.stages, choice.method
    if method == "flow":
        return latent(bench, name, rows, weighting, seed)[2].stages, method
    if method == "whiten,recolour" and len(pooled) <= pooled.shape[1]:
        return [], "none"  # whitening needs more texts than dimensions
    return fit(parse_method(method), pooled, DEFAULTS.shape(), Schedule(seed=seed), voice=SILENT).stages, method


def measure(bench: Bench, place: Place) -> dict[str, Any]:
    """Every column of the final table at one place."""
    scores: dict[str, dict[str, list[float]]] = {}
    kept = []
    for name, rows, scored in place.parts:
        for column, how in COLUMNS.items():
            if place.seed and column not in SEEDED and place.group != "few":
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


FULL = (("sif", 1e5, 1e-3), ("sif", 1e5, 3e-4))  # with every method; the others with two, to choose weights
WEIGHTINGS: list[Weighting] = [
    *(("sif", size, 1e-3) for size in (0.0, 1e5, 3e5, 1e6)),
    *(("sif", 1e5, a) for a in (1e-4, 3e-4, 3e-3, 1e-2)),
]
CLOSED = ("none", "components:1", "components:2", "components:3", "nullspace:3")
COLOURS = [(g, c, d) for g in (0.0, 0.1, 0.25, 0.5) for c in (0.2, 0.3, 0.4) for d in (0, 2)]


def candidates(bench: Bench, place: Place) -> dict[str, Any]:
    """The mean score of every candidate at one place, over the sets of CHOOSING."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in place.parts:
        scored = tuple(item for item in scored if item[0] in CHOOSING)
        if not scored:
            continue
        for weighting in WEIGHTINGS:
            weights = bench.weights(name, rows, weighting)
            pooled = bench.states.pooled(name, weights, rows)
            of_sets = {of: bench.states.pooled(of, weights) for of, _ in scored}
            chains: list[tuple[str, list[Stage], list[list[Stage]]]] = []
            for method in CLOSED if weighting in FULL else CLOSED[:2]:
                chains.append((method, fit(parse_method(method), pooled, DEFAULTS.shape(), Schedule()).stages, [[]]))
            if weighting in FULL:
                flow = latent(bench, name, rows, weighting, 0)[2].stages if len(pooled) >= DEFAULTS.batch_size else []
                bases = {"flow": flow}
                if len(pooled) > pooled.shape[1]:
                    bases["whiten"] = fit(parse_method("whiten"), pooled, DEFAULTS.shape(), Schedule()).stages
                for base, stages in bases.items():
                    joint = joint_moments(stages, pooled)
                    endings = [[fit_recolour(joint, pooled.shape[1], *colour)] for colour in COLOURS]
                    chains.append((base, stages, [[], *endings]))
            for method, stages, endings in chains:
                wide = [stage.astype(np.float64) for stage in stages]
                for of, subset in scored:
                    z = np.asarray(apply(wide, of_sets[of]))
                    for ending in endings:
                        label = f"{method}{_colour(ending)}, prior {weighting[1]:g}, a {weighting[2]:g}"
                        y = np.asarray(apply(ending, z))
                        found.setdefault(label, []).append(bench.spearman(of, subset, y))
    return {"group": place.group, "place": place.label, "scores": {k: float(np.mean(v)) for k, v in found.items()}}


def _colour(ending: list[Stage]) -> str:
    s = ending[0].settings if ending else {}
    return f" g {s['spectrum']:g} c {s['mean_share']:g} d {s['demoted']}" if s else ""


def kept(make: Any, bench: Bench, place: Place) -> Any:
    """``make(bench, place)`` as JSON gives it back, made once and then read from the cache."""
    path = bench.states.root / f"{make.__name__}-{place.label}-{place.seed}.json".replace("/", "_").replace(", ", "-")
    if not path.exists():
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps(make(bench, place)))
        unfinished.replace(path)
        click.echo(path.stem, err=True)
    return json.loads(path.read_text())


SHAPES_OF_PRIOR = {  # tokens of the background by those of the corpus, and the constant a
    "100,000, a 0.0003": (0.0, 3e-4), "100,000 (1 + 200,000/N), a 0.0003": (2e5, 3e-4),
    "100,000 (1 + 50,000/N), a 0.001": (NARROW, A), "100,000 (1 + 200,000/N), a 0.001": (2e5, A),
    "100,000 (1 + 100,000/N), a 0.0005": (1e5, 5e-4),
}  # fmt: skip


def priors(bench: Bench, place: Place) -> dict[str, Any]:
    """The gain over raw pooling of the whole default under each shape of the prior, at one place of a deciding set."""
    gains: dict[str, list[float]] = {}
    for name, rows, ((of, subset),) in place.parts:  # type: ignore[misc]
        if of not in CHOOSING:
            continue
        numbers = np.arange(len(bench.states.texts(name))) if rows is None else rows
        counts = bench.states.counts(name, numbers, bench.vocabulary)
        raw = bench.spearman(of, subset, bench.pooled(of, name, rows, PLAIN))
        for label, (narrow, a) in SHAPES_OF_PRIOR.items():
            weighting = ("sif", PRIOR * (1 + narrow / counts.sum()), a)
            stages, _ = stages_of(bench, name, rows, (weighting, "auto"), 0)
            wide = [stage.astype(np.float64) for stage in stages]
            z = np.asarray(apply(wide, bench.pooled(of, name, rows, weighting)))
            gains.setdefault(label, []).append(float(np.mean(bench.spearman(of, subset, z)) - np.mean(raw)))
    return {"group": place.group, "place": place.label, "gains": {k: float(np.mean(v)) for k, v in gains.items()}}


@click.command()
@click.option("--encoder", required=True, help="Encoder directory, or default.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts/ and corpora/.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Where states and results are kept.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(encoder: str, data: Path, cache: Path, out: Path) -> None:
    """Choose the default and measure it."""
    states = States(encoder, data, cache)
    each(sorted({*SEVEN, *CORPORA, *CUT_FROM}), states, lambda line: click.echo(line, err=True))
    bench = Bench(states)
    result: dict[str, Any] = {
        "command": f"python -m fastflow.bench.research.default --encoder .../{Path(encoder).name} "
        f"--data .../{data.name} --cache DIR --out {out}",
        "encoder": Path(encoder).name,
        "candidates": [kept(candidates, bench, place) for place in places(bench, 0) if decides(place)],
    }
    result["choice"] = blind_choice(result["candidates"])
    own = [place for place in places(bench, 0) if place.group in ("target", "subsets") and decides(place)]
    result["priors"] = [kept(priors, bench, place) for place in own]
    runs = [place for seed in range(max(SEEDS.values())) for place in places(bench, seed) if seed < SEEDS[place.group]]
    result["runs"] = [kept(measure, bench, place) for place in runs]
    result["claims"] = claims(result["runs"])
    write(out, result, markdown(result))


if __name__ == "__main__":
    main()
