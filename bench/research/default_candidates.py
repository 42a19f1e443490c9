"""The candidates of ``default``, each scored at the places that decide, on the sets that decide."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from fastflow.bench.research.default_places import CHOOSING, MIXED, PLAIN, Bench, Place, Weighting
from fastflow.bench.research.states import Rows
from fastflow.stages.calibration import Stage, apply
from fastflow.train.choice.selection import AUTO, choose
from fastflow.train.choice.separability import Views
from fastflow.train.data.moments import moments
from fastflow.train.data.token_weights import NARROW, PRIOR, A
from fastflow.train.methods.chain import Fitted, fit
from fastflow.train.methods.closed_forms import fit_whiten
from fastflow.train.methods.loop import Schedule
from fastflow.train.methods.names import parse_method, shipped
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import DEFAULTS, FEWEST, LARGE, SMALL, background_size
from fastflow.train.voice import SILENT

FULL = (("sif", 1e5, 1e-3), ("sif", 1e5, 3e-4))  # with every method; the others with two, to choose weights
WEIGHTINGS: list[Weighting] = [
    *(("sif", size, 1e-3) for size in (0.0, 1e5, 3e5, 1e6)),
    *(("sif", 1e5, a) for a in (1e-4, 3e-4, 3e-3, 1e-2)),
]
EARLIER_COLOUR = {"spectrum": 0.1, "mean_share": 0.3, "demoted": 2}  # of the default before it had a background
CLOSED = ("none", "components:1", "components:2", "components:3", "nullspace:3")
COLOURS = [(g, c, d) for g in (0.0, 0.1, 0.25, 0.5) for c in (0.2, 0.3, 0.4) for d in (0, 2)]
EQUAL_COLOURS = [(g, c, d) for g in (0.5, 0.75, 1.0) for c in (0.0, 0.1, 0.2, 0.3) for d in (0, 2)]


def candidates(bench: Bench, place: Place) -> dict[str, Any]:
    """The mean score of every candidate at one place, over the sets of CHOOSING."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        for weighting in WEIGHTINGS:
            chains = [(m, *_fitted(bench, name, rows, weighting, m)) for m in CLOSED[: 5 if weighting in FULL else 2]]
            if weighting in FULL:
                for base in ("flow", "whiten", "whiten tokens"):
                    chains.append((base, *_coloured(bench, name, rows, weighting, base, COLOURS)))
            for method, stages, endings in chains:
                for ending in endings:
                    label = f"{method}{_colour(ending)}, prior {weighting[1]:g}, a {weighting[2]:g}"
                    found.setdefault(label, []).extend(
                        _scores(bench, name, rows, weighting, [*stages, *ending], scored)
                    )
    return _means(place, found)


def beside(bench: Bench, place: Place) -> dict[str, Any]:
    """Flows fitted to the background's sentences beside the corpus, with recolour, as ``candidates``."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        for weighting in FULL:
            stages, endings = _coloured(bench, name, rows, weighting, "flow beside", COLOURS)
            for ending in endings[1:]:
                label = f"flow beside{_colour(ending)}, prior {weighting[1]:g}, a {weighting[2]:g}"
                found.setdefault(label, []).extend(_scores(bench, name, rows, weighting, [*stages, *ending], scored))
    return _means(place, found)


def equal(bench: Bench, place: Place) -> dict[str, Any]:
    """Flows with recolour where every token counts 1, as ``candidates``."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        stages, endings = _coloured(bench, name, rows, PLAIN, "flow", EQUAL_COLOURS)
        for ending in endings:
            scores = _scores(bench, name, rows, PLAIN, [*stages, *ending], scored)
            found.setdefault(f"flow{_colour(ending)}", []).extend(scores)
    return _means(place, found)


def sizes(bench: Bench, place: Place) -> dict[str, Any]:
    """The default's flow and recolour in both sizes, with and without the background, as ``candidates``."""
    found: dict[str, list[list[float]]] = {}
    for name, rows, scored in deciding(place):
        pooled = bench.pooled_of(name, rows, MIXED)
        for size, share in product((SMALL, LARGE), (0, 1)):
            count = share * background_size(len(pooled))
            _, _, flow = latent(bench, name, rows, MIXED, 0, count, **size)
            joint = joint_moments(flow.stages, _joined(pooled, bench.ground(name, rows, MIXED, count)))
            stages = [*flow.stages, fit_recolour(joint, len(joint.mean) // 2, **DEFAULTS.colour)]
            label = f"{DEFAULTS.levels}x{size['depth']}, width {size['width']}{', background' * share}"
            found.setdefault(label, []).extend(_scores(bench, name, rows, MIXED, stages, scored))
    return _means(place, found)


def deciding(place: Place) -> list[tuple[str, Rows | None, tuple[tuple[str, str | None], ...]]]:
    """The parts of a place with the sets of CHOOSING alone."""
    parts = ((n, rows, tuple(item for item in scored if item[0] in CHOOSING)) for n, rows, scored in place.parts)
    return [part for part in parts if part[2]]


Chain = tuple[list[Stage], list[list[Stage]]]  # stages, and the endings that are tried behind them


def _fitted(bench: Bench, name: str, rows: Rows | None, weighting: Weighting, method: str) -> Chain:
    pooled = bench.pooled_of(name, rows, weighting)
    return list(fit(parse_method(method), pooled, DEFAULTS.shape(), Schedule()).stages), [[]]


def _coloured(
    bench: Bench, name: str, rows: Rows | None, weighting: Weighting, base: str, colours: Sequence[tuple[float, ...]]
) -> Chain:
    """``base`` without and with every recolour behind it; whitening of tokens is Zipfian (Yokoi et al. 2024): its
    statistics are those of token states, each counted as often as it occurs. No stages and no endings where it cannot
    be fitted.
    """
    pooled = bench.pooled_of(name, rows, weighting)
    stages: list[Stage] = []
    if base == "flow beside":
        count = background_size(len(pooled))
        stages = list(latent(bench, name, rows, weighting, 0, count)[2].stages)
        pooled = _joined(pooled, bench.ground(name, rows, weighting, count))
    elif base == "flow" and len(pooled) >= DEFAULTS.batch_size:
        stages = list(latent(bench, name, rows, weighting, 0)[2].stages)
    elif base == "whiten tokens":
        stages = [fit_whiten(bench.states.moments(name, rows))]
    elif base == "whiten":
        if len(pooled) <= pooled.shape[1]:
            return [], []
        stages = [fit_whiten(moments(pooled))]
    joint = joint_moments(stages, pooled)
    return stages, [[], *([fit_recolour(joint, pooled.shape[1], *colour)] for colour in colours)]


def _scores(
    bench: Bench, name: str, rows: Rows | None, weighting: Weighting, stages: Sequence[Stage], scored: Any
) -> list[list[float]]:
    wide = [stage.astype(np.float64) for stage in stages]
    vectors = ((of, subset, bench.pooled(of, name, rows, weighting)) for of, subset in scored)
    return [bench.spearman(of, subset, np.asarray(apply(wide, x))) for of, subset, x in vectors]


def _means(place: Place, found: dict[str, list[list[float]]]) -> dict[str, Any]:
    return {"group": place.group, "place": place.label, "scores": {k: float(np.mean(v)) for k, v in found.items()}}


def _colour(ending: list[Stage]) -> str:
    s = ending[0].settings if ending else {}
    return f" g {s['spectrum']:g} c {s['mean_share']:g} d {s['demoted']}" if s else ""


def latent(
    bench: Bench, name: str, rows: Rows | None, weighting: Weighting, seed: int, count: int = 0, **size: int
) -> tuple[Any, Views, Fitted]:
    """(pooled, views, the flow that the rule keeps) of one part, beside ``count`` sentences of the background.

    ``size`` replaces a depth and width of its own.
    """
    weights = bench.weights(name, rows, weighting)
    pooled = bench.pooled_of(name, rows, weighting).astype(np.float32)
    views = bench.states.views(name, weights, np.arange(len(bench.states.texts(name))) if rows is None else rows)
    shape, schedule = DEFAULTS.shape(len(pooled), count) | size, Schedule(seed=seed)
    ground = bench.ground(name, rows, weighting, count)
    flow = fit(parse_method("flow"), pooled, shape, schedule, views=views, voice=SILENT, background=ground)
    return pooled, views, flow


def _joined(pooled: Any, background: Any) -> Any:
    return pooled if background is None else np.concatenate([pooled, background])


def stages_of(
    bench: Bench, name: str, rows: Rows | None, column: tuple[Weighting, str], seed: int
) -> tuple[list[Stage], str]:
    """The stages of one column fitted on one part, and the method that is kept.

    ``auto`` is what fastflow-train does; ``auto alone`` has no background and EARLIER_COLOUR.
    """
    weighting, method = column
    weights = bench.weights(name, rows, weighting)
    pooled = bench.states.pooled(name, weights, rows).astype(np.float32)
    if len(pooled) < {"auto": FEWEST, "auto alone": FEWEST, "flow": DEFAULTS.batch_size}.get(method, 0):
        return [], "none"
    if method.startswith("auto"):
        count = background_size(len(pooled)) if method == "auto" else 0
        colour = DEFAULTS.colour if count else EARLIER_COLOUR
        ground = bench.ground(name, rows, weighting, count)
        views = bench.states.views(name, weights, np.arange(len(bench.states.texts(name))) if rows is None else rows)

        def once(chosen: str) -> Fitted:
            links, shape = shipped(parse_method(chosen), latent=False), DEFAULTS.shape(len(pooled), count)
            schedule = Schedule(seed=seed)
            return fit(links, pooled, shape, schedule, colour, views=views, voice=SILENT, background=ground)

        choice = choose(AUTO, once, views, automatic=True)
        return choice.fitted.stages, choice.method
    if method == "flow":
        return latent(bench, name, rows, weighting, seed)[2].stages, method
    if method == "whiten,recolour" and len(pooled) <= pooled.shape[1]:
        return [], "none"  # whitening needs more texts than dimensions
    return fit(parse_method(method), pooled, DEFAULTS.shape(), Schedule(seed=seed), voice=SILENT).stages, method


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
            stages, _ = stages_of(bench, name, rows, (weighting, "auto alone"), 0)
            wide = [stage.astype(np.float64) for stage in stages]
            z = np.asarray(apply(wide, bench.pooled(of, name, rows, weighting)))
            gains.setdefault(label, []).append(float(np.mean(bench.spearman(of, subset, z)) - np.mean(raw)))
    return {"group": place.group, "place": place.label, "gains": {k: float(np.mean(v)) for k, v in gains.items()}}
