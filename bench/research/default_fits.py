"""The fits and scores of ``default``: stages by fastflow-train's own functions, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastflow.bench.research.default_places import Bench, Weighting
from fastflow.bench.research.states import Rows
from fastflow.stages.calibration import Stage, apply
from fastflow.train.choice.selection import AUTO, choose
from fastflow.train.data.moments import moments
from fastflow.train.methods.chain import Fitted, fit
from fastflow.train.methods.closed_forms import fit_whiten
from fastflow.train.methods.loop import Fitting, Schedule
from fastflow.train.methods.names import parse_method, shipped
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import DEFAULTS, FEWEST, background_size
from fastflow.train.progress import SILENT

EARLIER_COLOUR = {"spectrum": 0.1, "mean_share": 0.3, "demoted": 2}  # of the default before it had a background
Chain = tuple[list[Stage], list[list[Stage]]]  # stages, and the endings that are tried after them


def fitted(bench: Bench, name: str, rows: Rows | None, weighting: Weighting, method: str) -> Chain:
    """A closed form, with nothing after it."""
    pooled = bench.pooled_of(name, rows, weighting)
    return list(fit(parse_method(method), pooled, DEFAULTS.shape(), Fitting()).stages), [[]]


def coloured(
    bench: Bench,
    name: str,
    rows: Rows | None,
    weighting: Weighting,
    base: str,
    seed: int,
    colours: Sequence[tuple[float, float, int]],
) -> Chain:
    """``base`` without and with every recolour after it; no stages and no endings if it cannot be fitted.

    Whitening of tokens is Zipfian (Yokoi et al. 2024): its covariance is that of token states, each counted as often as
    it occurs, brought to the variance of the texts. Whitening of words has the statistics of the background alone.
    """
    pooled = bench.pooled_of(name, rows, weighting)
    count = background_size(len(pooled)) if base in ("flow beside", "whiten words") else 0
    seen = bench.ground(name, rows, weighting, count) if count else pooled
    if base.startswith("whiten"):
        known = moments(seen)
        if base == "whiten tokens":
            texts, known = known, bench.of(weighting).moments(name, rows)
            scale = np.trace(texts.covariance) / np.trace(known.covariance)
            known.mean, known.scatter = texts.mean, known.scatter * scale
        if known.count <= len(known.mean):
            return [], []
        stages = [fit_whiten(known)]
        joint = known.beside(stages)
    else:
        fits = count or len(pooled) >= DEFAULTS.batch_size
        stages = list(latent(bench, name, rows, weighting, seed, count).stages) if fits else []
        joint = joint_moments(stages, seen)
    return stages, [[], *([fit_recolour(joint, pooled.shape[1], *colour)] for colour in colours)]


def scores_of(
    bench: Bench,
    name: str,
    rows: Rows | None,
    weighting: Weighting,
    stages: Sequence[Stage],
    endings: Sequence[Sequence[Stage]],
    scored: Any,
) -> list[list[list[float]]]:
    """Of each ending after ``stages``, the scores of every set."""
    wide, *ends = ([stage.astype(np.float64) for stage in chain] for chain in (stages, *endings))
    out: list[list[list[float]]] = [[] for _ in ends]
    for of, subset in scored:
        z = np.asarray(apply(wide, bench.pooled(of, name, rows, weighting)))
        for end, scores in zip(ends, out, strict=True):
            scores.append(bench.spearman(of, subset, np.asarray(apply(end, z))))
    return out


def latent(
    bench: Bench, name: str, rows: Rows | None, weighting: Weighting, seed: int, count: int = 0, **size: int
) -> Fitted:
    """The flow that the rule keeps of one part, together with ``count`` sentences of the background.

    ``size`` replaces a depth and width of its own.
    """
    pooled = bench.pooled_of(name, rows, weighting).astype(np.float32)
    views = bench.views(name, rows, weighting)
    shape, schedule = DEFAULTS.shape(len(pooled), count) | size, Schedule(seed=seed)
    ground = bench.ground(name, rows, weighting, count)
    fitting = Fitting(schedule, views=views, voice=SILENT)
    return fit(parse_method("flow"), pooled, shape, fitting, background=ground)


def stages_of(
    bench: Bench, name: str, rows: Rows | None, column: tuple[Weighting, str], seed: int
) -> tuple[list[Stage], str]:
    """Fit one column of the table on one part of a corpus: the calibration's stages, and the method that was kept.

    ``auto`` fits as fastflow-train does. ``auto alone`` fits without a background, and recolours as an earlier default
    did (EARLIER_COLOUR).
    """
    weighting, method = column
    pooled = bench.pooled_of(name, rows, weighting).astype(np.float32)
    if len(pooled) < {"auto": FEWEST, "auto alone": FEWEST, "flow": DEFAULTS.batch_size}.get(method, 0):
        return [], "none"
    if method.startswith("auto"):
        count = background_size(len(pooled)) if method == "auto" else 0
        colour = DEFAULTS.colour if count else EARLIER_COLOUR
        ground = bench.ground(name, rows, weighting, count)
        views = bench.views(name, rows, weighting)

        def once(chosen: str) -> Fitted:
            links, shape = shipped(parse_method(chosen), latent=False), DEFAULTS.shape(len(pooled), count)
            schedule = Schedule(seed=seed)
            return fit(links, pooled, shape, Fitting(schedule, views=views, voice=SILENT), colour, background=ground)

        choice = choose(AUTO, once, views, automatic=True)
        return choice.fitted.stages, choice.method
    if method == "flow":
        return latent(bench, name, rows, weighting, seed).stages, method
    if method == "whiten,recolour" and len(pooled) <= pooled.shape[1]:
        return [], "none"  # whitening needs more texts than dimensions
    fitting = Fitting(Schedule(seed=seed), voice=SILENT)
    return fit(parse_method(method), pooled, DEFAULTS.shape(), fitting).stages, method
