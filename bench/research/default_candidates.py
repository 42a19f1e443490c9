"""The candidates of ``default``, each scored at the places that decide, on the sets that decide."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from fastflow.bench.research.default_fits import coloured, fitted, latent, scores_of, stages_of
from fastflow.bench.research.default_places import CHOOSING, EQUAL, LAYERS, MIXED, PLAIN, Bench, Place, Weighting
from fastflow.bench.research.states import Rows
from fastflow.stages.calibration import Stage, apply
from fastflow.train.data.token_weights import NARROW, PRIOR, A
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import DEFAULTS, LARGE, SMALL, background_size

FULL = (Weighting("sif", 1e5, 1e-3), Weighting("sif", 1e5, 3e-4))  # with every method; the others with two
WEIGHTINGS: list[Weighting] = [
    *(Weighting("sif", size, 1e-3) for size in (0.0, 1e5, 3e5, 1e6)),
    *(Weighting("sif", 1e5, a) for a in (1e-4, 3e-4, 3e-3, 1e-2)),
]
CLOSED = ("none", "components:1", "components:2", "components:3", "nullspace:3")
COLOURS = [(g, c, d) for g in (0.0, 0.1, 0.25, 0.4, 0.5) for c in (0.1, 0.2, 0.3, 0.4) for d in (0, 2)]
EQUAL_COLOURS = [(g, c, d) for g in (0.5, 0.75, 1.0) for c in (0.0, 0.1, 0.2, 0.3) for d in (0, 2)]


def candidates(bench: Bench, place: Place) -> dict[str, Any]:
    """The mean score of every candidate at one place, over the sets of CHOOSING."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        for weighting in WEIGHTINGS:
            chains = [(m, *fitted(bench, name, rows, weighting, m)) for m in CLOSED[: 5 if weighting in FULL else 2]]
            if weighting in FULL:
                for base in ("flow", "whiten", "whiten tokens", "whiten words"):
                    chains.append((base, *coloured(bench, name, rows, weighting, base, place.seed, COLOURS)))
            for method, stages, endings in chains:
                scores = scores_of(bench, name, rows, weighting, stages, endings, scored)
                _add(found, method, endings, scores, f", prior {weighting.prior:g}, a {weighting.a:g}")
    return _means(place, found)


def beside(bench: Bench, place: Place) -> dict[str, Any]:
    """Flows fitted to the background's sentences together with the corpus, with recolour, as ``candidates``."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        for weighting in FULL:
            stages, endings = coloured(bench, name, rows, weighting, "flow beside", place.seed, COLOURS)
            scores = scores_of(bench, name, rows, weighting, stages, endings[1:], scored)
            _add(found, "flow beside", endings[1:], scores, f", prior {weighting.prior:g}, a {weighting.a:g}")
    return _means(place, found)


def equal(bench: Bench, place: Place) -> dict[str, Any]:
    """The default's flow with recolour where every token counts 1, as ``candidates``."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        stages, endings = coloured(bench, name, rows, EQUAL, "flow beside", place.seed, EQUAL_COLOURS)
        _add(found, "flow beside", endings, scores_of(bench, name, rows, EQUAL, stages, endings, scored))
    return _means(place, found)


def sizes(bench: Bench, place: Place) -> dict[str, Any]:
    """The default's flow and recolour in both sizes, with and without the background, as ``candidates``."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        pooled = bench.pooled_of(name, rows, MIXED)
        for size, share in product((SMALL, LARGE), (0, 1)):
            count = share * background_size(len(pooled))
            flow = latent(bench, name, rows, MIXED, 0, count, **size)
            joint = joint_moments(flow.stages, bench.ground(name, rows, MIXED, count) if count else pooled)
            stages = [*flow.stages, fit_recolour(joint, len(joint.mean) // 2, **DEFAULTS.colour)]
            label = f"{DEFAULTS.levels}x{size['depth']}, width {size['width']}{', background' * share}"
            found.setdefault(label, []).extend(*scores_of(bench, name, rows, MIXED, stages, [[]], scored))
    return _means(place, found)


def layers(bench: Bench, place: Place) -> dict[str, Any]:
    """The weights alone, components:1 and the default's flow on other layers, as ``candidates``."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        for pooling in LAYERS:
            weighting = MIXED._replace(pooling=pooling)
            for method in ("none", "components:1"):
                chain = fitted(bench, name, rows, weighting, method)
                found.setdefault(f"{pooling}, {method}", []).extend(
                    *scores_of(bench, name, rows, weighting, *chain, scored)
                )
            colour = [tuple(DEFAULTS.colour.values())]
            stages, endings = coloured(bench, name, rows, weighting, "flow beside", place.seed, colour)
            scores = scores_of(bench, name, rows, weighting, stages, endings[1:], scored)
            found.setdefault(f"{pooling}, flow beside", []).extend(*scores)
    return _means(place, found)


def deciding(place: Place) -> list[tuple[str, Rows | None, tuple[tuple[str, str | None], ...]]]:
    """The parts of a place with the sets of CHOOSING alone."""
    parts = ((n, rows, tuple(item for item in scored if item[0] in CHOOSING)) for n, rows, scored in place.parts)
    return [part for part in parts if part[2]]


def _means(place: Place, found: dict[str, list[list[float]]]) -> dict[str, Any]:
    scores = {label: round(float(np.mean(values)), 4) for label, values in found.items()}
    return {"group": place.group, "place": place.label, "scores": scores}


def _add(
    found: dict[str, list[list[float]]], method: str, endings: Any, scores: list[list[list[float]]], weighted: str = ""
) -> None:
    """Put the scores of each ending after ``method`` under a label that names both."""
    for ending, of_sets in zip(endings, scores, strict=True):
        found.setdefault(f"{method}{_colour(ending)}{weighted}", []).extend(of_sets)


def _colour(ending: list[Stage]) -> str:
    s = ending[0].settings if ending else {}
    return f" g {s['spectrum']:g} c {s['mean_share']:g} d {s['demoted']}" if s else ""


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
        counts = bench.states.counts(name, bench.numbers(name, rows), bench.vocabulary)
        raw = bench.spearman(of, subset, bench.pooled(of, name, rows, PLAIN))
        for label, (narrow, a) in SHAPES_OF_PRIOR.items():
            weighting = Weighting("sif", PRIOR * (1 + narrow / counts.sum()), a)
            stages, _ = stages_of(bench, name, rows, (weighting, "auto alone"), 0)
            wide = [stage.astype(np.float64) for stage in stages]
            z = np.asarray(apply(wide, bench.pooled(of, name, rows, weighting)))
            gains.setdefault(label, []).append(float(np.mean(bench.spearman(of, subset, z)) - np.mean(raw)))
    return {"group": place.group, "place": place.label, "gains": {k: float(np.mean(v)) for k, v in gains.items()}}
